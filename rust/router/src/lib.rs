//! The router: an HTTP/1.1 reverse proxy in front of OpenAI-compatible servers, its workers.
//!
//! Its folders are layers: each imports from those below it only.
//!
//! - [`app`]: what a user may set, and the threads that all the rest runs on.
//! - [`front`]: a connection is accepted, a request read off it and let in, by key, origin and number.
//! - [`admin`]: the paths that the router answers itself.
//! - [`proxy`]: every other request goes to a worker and back, to another one if nothing was answered.
//!   Which worker that is, `sglang_omni_policy` says.
//! - [`fleet`]: the workers, and what is known of each.
//! - [`upstream`]: connections to workers.
//! - [`base`]: the clock, the log, the counters, and what else knows none of the above.
//!
//! A request crosses them on one thread, a *lane*, which has its own listener, connections and counters
//! ([`proxy::lane`]). One more thread does what no request waits for: health checks, discovery, `/metrics` on a
//! port of its own.

mod admin;
mod app;
mod base;
mod fleet;
mod front;
mod proxy;
mod upstream;

pub use app::config::Config;
pub use app::router::{Router, StartError};
pub use base::config_error::ConfigError;
pub use base::log::{Level, LogFormat};
pub use sglang_omni_policy::PolicyKind;
