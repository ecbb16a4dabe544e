//! Connections to workers.
//!
//! A [`worker_url`] says where a worker is, its [`endpoint`] how to connect to it: the [`address`] that its name
//! leads to now, and the certificate that it must show, whose authorities [`trust`] knows. A [`connection`] waits
//! in the [`pool`] for the next request. It carries a [`request_body`] there and an answer back, the
//! [`tail`] of which may be kept. [`forwarding`] says which headers stop at a proxy.

pub mod address;
pub mod connection;
pub mod endpoint;
pub mod forwarding;
pub mod pool;
pub mod request_body;
pub mod tail;
pub mod trust;
pub mod worker_url;
