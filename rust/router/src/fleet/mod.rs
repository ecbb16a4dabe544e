//! The workers, and what is known of each.
//!
//! - A [`worker`] has a slot of its own in tables ([`slots`]) and serves [`models`]; [`discovery`] finds more.
//! - Its [`health_flags`] say which tier it is in: its probes set them ([`health`], with the [`resolver`] of its
//!   name), its failures ([`breaker`]), and a silence that shows that it is [`hung`].
//! - [`pending_heads`] are requests that wait for their answer to begin; the [`wait_history`] says how long those
//!   like them have waited.
//! - [`loop_detection`] finds a worker that is a router and sends requests back.
//! - [`fan_out`] asks all workers at once.

pub mod breaker;
pub mod discovery;
pub mod fan_out;
pub mod health;
pub mod health_flags;
pub mod hung;
pub mod loop_detection;
pub mod models;
pub mod pending_heads;
pub mod resolver;
pub mod slots;
pub mod wait_history;
pub mod worker;
