//! One request's way to a worker and back.
//!
//! - [`http`] reads what it needs of a request's body ([`upload`], in [`pieces`]); [`upgrade`] is for requests that
//!   change protocols. [`in_flight`] limits how many go on from here at once.
//! - Both go through the [`attempt_loop`]. [`choice`] finds a worker; [`attempts`] says what follows from what
//!   becomes of it, within the [`retry_budget`].
//! - A [`body`] brings the answer back; its end may tell [`usage`]. [`reply`] makes the router's own answers.
//! - The [`record`] is what is known of the request in the end.
//! - All of it runs on a [`lane`].

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
