//! The router as a whole, and the only layer that knows all others: what a user may set ([`config`]), what each
//! layer is told of it ([`settings`]), the threads of a [`router`], and what goes on beside the requests
//! ([`watchers`]).

pub mod config;
pub mod router;
mod settings;
mod values;
mod watchers;
