//! What every other layer stands on, and what knows none of them: the [`clock`], the [`log`], what is counted
//! ([`metrics`], in [`histogram`]s), a connection ([`stream`]), the [`client`] at its other end, the kind of a
//! request ([`route`]) and its id ([`request_id`]), tasks that go on whatever happens ([`supervise`]), and
//! [`memory`] that is given back.

pub mod client;
pub mod clock;
pub mod histogram;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod request_id;
pub mod route;
pub mod stream;
pub mod supervise;
