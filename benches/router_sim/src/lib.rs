//! The router's policies against simulated workers, without sockets: hundreds of workers and millions of
//! requests in seconds.
//!
//! [`trace`] makes the requests, [`kv`] is a worker's KV cache, [`fleet`] runs a trace through a policy, and
//! [`baselines`] are policies to compare with. `benches/router_load`, over real sockets, uses the same traces and
//! caches, so that both measure the same thing.

pub mod baselines;
pub mod cold;
pub mod cost;
pub mod exact;
pub mod fleet;
pub mod growth;
pub mod kv;
pub mod tables;
pub mod trace;
