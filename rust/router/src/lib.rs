//! The router: an HTTP/1.1 reverse proxy in front of OpenAI-compatible replicas.
//!
//! A request enters [`server`], passes the [`gate`], is answered by [`admin`] or forwarded by [`proxy`],
//! which asks a [`policy`] for a worker, takes a connection to it from [`upstream`] and hands the answer
//! back as it comes. Every thread is a [`lane::Lane`] with its own listener and connections, so a request never
//! changes threads; what the lanes share is in [`lane::Shared`]. What is known of it in the end, its
//! [`exchange`], goes into [`metrics`] and [`log`].

mod address;
mod admin;
mod auth;
mod body;
mod breaker;
mod chars;
mod client;
mod client_io;
mod clock;
mod config;
mod cors;
mod discovery;
mod exchange;
mod fan_out;
mod first_bytes;
mod forwarding;
mod gate;
mod health;
mod histogram;
mod hung;
mod in_flight;
mod json;
mod lane;
mod listen;
mod log;
mod media;
mod memory;
mod metrics;
mod models;
mod policy;
mod prometheus;
mod proxy;
mod reply;
mod request_id;
mod retry;
mod route;
mod scan;
mod scrape;
mod server;
mod spin;
mod standing;
mod tls;
mod tree;
mod upgrade;
mod upstream;
mod usage;
mod waiting;
mod worker;

pub use config::{Config, ConfigError};
pub use log::{Level, LogFormat};
pub use policy::{
    CacheAware, Candidates, Decision, Policy, PolicyKind, Receipt, RequestKey, Tuning, Usage,
    build as build_policy,
};
pub use server::{Router, StartError};
pub use worker::{LoadGuard, Worker};
