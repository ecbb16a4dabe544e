//! The lowest layer: clock, log, counters and other small parts that every other layer uses.
//!
//! - A request's kind ([`route`]), id ([`request_id`]) and end ([`end`]), and this project's own [`headers`].
//! - A connection ([`stream`]), and the state of the [`client`] at its other end.
//! - The place of a request in a distributed trace ([`tracing_context`]), and [`percent`]-encoded text.
//! - The counters ([`metrics`], [`histogram`]), their text format ([`prometheus`]) and its [`page`], and the [`log`].
//! - The [`clock`]; tasks that are restarted if they panic ([`supervise`]); how far the router is [`stopping`];
//!   [`memory`] that is returned to the system; points at which tests make it fail ([`fault_point`]).
//! - [`keys`], [`certificates`] and rules for [`tenants`] from files, with priority as a [`class`], the [`protocol_key`] of a WebSocket, and the [`config_error`] for a
//!   wrong configuration.

pub mod certificates;
pub mod class;
pub mod client;
pub mod clock;
pub mod config_error;
pub mod end;
pub mod fault_point;
pub mod form;
pub mod headers;
pub mod histogram;
pub mod keys;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod page;
pub mod percent;
pub mod prometheus;
pub mod protocol_key;
pub mod request_id;
pub mod route;
pub mod stopping;
pub mod stream;
pub mod supervise;
pub mod tenants;
pub mod tracing_context;
