//! The router as a whole: what a user may set ([`config`]), and the threads that it runs on ([`router`]).

pub mod config;
pub mod router;
mod values;
