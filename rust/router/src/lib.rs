//! The router: an HTTP/1.1 reverse proxy in front of OpenAI-compatible servers, its workers.
//!
//! Its folders are layers: each imports only from those below it.
//!
//! - [`app`]: the options, and the threads that run all the rest.
//! - [`front`]: accepts connections and admits requests by key, origin and number.
//! - [`admin`]: answers the router's own paths.
//! - [`proxy`]: forwards every other request to a worker, and to another one if no answer came.
//!   `sglang_omni_policy` chooses the worker.
//! - [`fleet`]: the workers, their health, and how they are found.
//! - [`upstream`]: connections to workers.
//! - [`base`]: the clock, the log, the counters and other small parts.
//!
//! A request crosses them on one thread, a *lane*, which has its own listener, connections and counters
//! ([`proxy::lane`]). One more thread runs the background tasks: health checks, discovery, `/metrics` on a port of
//! its own.

mod admin;
mod app;
mod base;
mod fleet;
mod front;
mod proxy;
mod upstream;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use app::config::Config;
pub use app::router::{Router, StartError};
pub use base::config_error::ConfigError;
pub use base::log::{Level, LogFormat};
pub use sglang_omni_policy::PolicyKind;
