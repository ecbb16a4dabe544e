//! One request's way to a worker and back.
//!
//! [`proxy`] forwards it ([`upgrade`] if it changes protocols), without the headers that stop here
//! ([`forwarding`]), and [`retry`] says which worker is next when one fails. [`upstream`] keeps the
//! connections to workers. An [`upload`] flows there and a [`body`] back, whose end tells [`usage`].
//! [`route`] names the kind of request, and [`exchange`] is what is known of it in the end.

pub mod body;
pub mod exchange;
pub mod forwarding;
pub mod pieces;
pub mod proxy;
pub mod retry;
pub mod route;
pub mod upgrade;
pub mod upload;
pub mod upstream;
pub mod usage;
