//! The router: an HTTP/1.1 reverse proxy in front of OpenAI-compatible replicas.
//!
//! What a request crosses, in order:
//!
//! 1. [`front`]: a connection is accepted, a request read off it and let in, by key, origin and number.
//! 2. [`admin`]: paths that the router answers itself end here.
//! 3. [`request`]: all others go to a worker and back, again elsewhere while nothing was answered.
//! 4. `sglang_omni_policy`: what of its body matters for where it goes, and which worker that is.
//! 5. [`fleet`]: the workers, and what is known of each.
//! 6. [`telemetry`]: what is known of the request once it is over.
//!
//! All of that happens on one thread, a [`runtime::lane::Lane`] with its own listener and connections; what
//! the lanes share is in [`runtime::lane::Shared`]. [`front::server::Router`] starts them, and beside them
//! one thread for what no request waits for: health checks, discovery, `/metrics` on a port of its own.
//! [`config`] is what a user may set; `bin/sglang-omni-router` and Python read it from a command line.

mod admin;
mod config;
mod fleet;
mod front;
mod request;
mod runtime;
mod telemetry;

pub use config::{Config, ConfigError};
pub use front::server::{Router, StartError};
pub use sglang_omni_policy::PolicyKind;
pub use telemetry::log::{Level, LogFormat};
