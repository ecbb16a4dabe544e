//! Workers' events about their caches, as SGLang and vLLM publish them over ZeroMQ.
//!
//! - [`source`] says where a worker publishes them; [`watch`] follows every worker that does.
//! - [`subscription`] follows one data parallel rank, and closes gaps.
//! - [`zmtp`] is the wire protocol, [`batch`] reads what comes, with [`msgpack`] as its cursor.

pub mod batch;
mod msgpack;
pub mod source;
mod subscription;
pub mod watch;
mod zmtp;
