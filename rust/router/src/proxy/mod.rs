//! One request's way to a worker and back.
//!
//! [`http`] forwards it ([`upgrade`] if it changes protocols). [`choice`] says which worker gets it, and [`attempts`] whether another one does when that fails. An
//! [`upload`] flows there and a [`body`] back, whose end tells [`usage`]. [`reply`] is what the router says
//! itself, and [`record`] what is known of the request in the end. [`in_flight`] limits how many there are at
//! once. The [`lane`] is the thread's part of the router that all of it runs on.

pub mod attempt_loop;
pub mod attempts;
pub mod body;
pub mod choice;
pub mod http;
pub mod in_flight;
pub mod lane;
pub mod pieces;
pub mod record;
pub mod reply;
pub mod retry_budget;
pub mod upgrade;
pub mod upload;
pub mod usage;
