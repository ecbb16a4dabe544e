//! Connections to workers.
//!
//! A [`worker_url`] becomes an [`endpoint`]: the [`address`] of the worker's host, and the name that its certificate
//! must be for, which [`trust`] checks. A [`connection`] waits for the next request in the [`pool`] of its lane, or, [`idle`] for longer,
//! for one of any lane. It carries a
//! [`request_body`] to the worker and an answer back, the [`tail`] of which may be kept. [`forwarding`] has HTTP's
//! rules for a proxy. [`span_export`] connects to a collector of traces instead of a worker.

pub mod address;
pub mod connection;
pub mod endpoint;
pub mod forwarding;
pub mod idle;
pub mod pool;
pub mod request_body;
pub mod span_export;
pub mod tail;
pub mod trust;
pub mod worker_url;
