//! The router: an HTTP/1.1 reverse proxy in front of OpenAI-compatible replicas.
//!
//! A request enters [`server`], is answered by [`admin`] or forwarded by [`proxy`], which asks a
//! [`policy`] for a worker, takes a connection to it from [`upstream`] and hands the answer back as
//! it comes. Every thread is a [`lane::Lane`] with its own listener and connections, so a request never
//! changes threads; what the lanes share is in [`lane::Shared`].

mod admin;
mod body;
mod breaker;
mod chars;
mod client_io;
mod clock;
mod config;
mod forwarding;
mod health;
mod lane;
mod metrics;
mod policy;
mod proxy;
mod reply;
mod retry;
mod scan;
mod server;
mod standing;
mod tree;
mod upgrade;
mod upstream;
mod worker;

pub use config::{Config, ConfigError};
pub use policy::{Candidates, Policy, PolicyKind, RequestKey, build as build_policy};
pub use server::{Router, StartError};
pub use worker::{LoadGuard, Worker};
