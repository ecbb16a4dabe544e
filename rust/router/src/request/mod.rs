//! One request's way to a worker and back.
//!
//! [`proxy`] forwards it ([`upgrade`] if it changes protocols), without the headers that stop here
//! ([`forwarding`]). [`choice`] says which worker gets it, and [`retry`] whether another one does when that
//! fails. [`upstream`] keeps the connections to workers. An [`upload`] flows there and a [`body`] back, whose
//! end tells [`usage`]. [`route`] names the kind of request, and [`exchange`] is what is known of it in the
//! end.

pub mod body;
pub mod choice;
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
