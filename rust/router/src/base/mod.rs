//! The ground that every other layer stands on; it knows none of them.
//!
//! - A request's kind ([`route`]), id ([`request_id`]) and end ([`end`]); the [`headers`] that name things.
//! - A connection ([`stream`]) and the [`client`] at its other end.
//! - What is counted ([`metrics`], in [`histogram`]s), its text format ([`prometheus`]), and the [`log`].
//! - The [`clock`], tasks that go on whatever happens ([`supervise`]) until the router is [`stopping`], and
//!   [`memory`] that is given back.
//! - [`keys`] and [`certificates`] as files hold them, and the [`config_error`] if they do not.

pub mod certificates;
pub mod client;
pub mod clock;
pub mod config_error;
pub mod end;
pub mod headers;
pub mod histogram;
pub mod keys;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod prometheus;
pub mod request_id;
pub mod route;
pub mod stopping;
pub mod stream;
pub mod supervise;
