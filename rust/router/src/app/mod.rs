//! Puts the router together; the only layer that knows all others. It has the options ([`config`]), the settings that
//! each layer gets from them ([`settings`]), the threads of a [`router`], and its background tasks ([`watchers`]).

pub mod config;
pub mod router;
mod settings;
mod values;
mod watchers;
