//! Forwards requests to workers and their answers to clients.
//!
//! - [`http`] reads what it needs of a request's body ([`upload`], in [`pieces`]); [`upgrade`] is for requests that
//!   change protocols. [`in_flight`] limits how many requests are at workers at once; others wait
//!   in a [`fair_queue`], as their [`wish`] says, at a [`turn_pace`] and within [`rates`], or get [`no_permit`].
//! - Both go through the [`attempt_loop`]. [`choice`] finds a worker among those that are [`eligible`]; [`attempts`]
//!   decides what follows from an attempt's outcome, within the [`retry_budget`].
//! - A [`body`] brings the answer back: a [`payload`] of a worker, whose end may say the [`usage`], or a [`reply`] of the
//!   router's own.
//! - The [`record`] collects what metrics and the access log say of a request.
//! - All of it runs on a [`lane`].

pub mod attempt_loop;
pub mod attempts;
pub mod body;
pub mod choice;
mod eligible;
pub mod fair_queue;
pub mod http;
pub mod in_flight;
pub mod lane;
pub mod no_permit;
pub mod payload;
pub mod pieces;
mod rates;
pub mod record;
pub mod reply;
pub mod retry_budget;
mod turn_pace;
pub mod upgrade;
pub mod upload;
pub mod usage;
pub mod wish;
