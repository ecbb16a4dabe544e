//! Connections to workers. A [`worker_url`] says where a worker is, its [`address`] where that leads now, and
//! [`trust`] which certificate it must show. A [`connection`] is kept for the next request. [`forwarding`]
//! says which headers stop at a proxy.

pub mod address;
pub mod connection;
pub mod forwarding;
pub mod trust;
pub mod worker_url;
