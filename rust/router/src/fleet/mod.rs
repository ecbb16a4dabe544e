//! The workers, their health, and how they are found.
//!
//! - A [`worker`] has its own slot in tables ([`slots`]) and serves [`models`]; [`discovery`] finds more workers.
//! - A worker's [`health_flags`] say which tier it is in; [`changes`] counts what changes that. Health checks ([`health`], with the [`resolver`] of its
//!   name), failures ([`breaker`]) and a silence that means that it is [`hung`] set them.
//! - [`pending_heads`] are requests that wait for their answer to begin; the [`wait_history`] says how long similar
//!   ones have waited, and a worker's [`work`] what else it is at.
//! - [`servers`] finds the worker that keeps a response, [`sessions`] the one that has a session.
//! - [`loop_detection`] finds workers that are routers and send requests back.
//! - [`cache_events`] follows what workers publish of their caches; [`event_state`] is what came of it.
//! - [`fan_out`] asks all workers at once.

pub mod breaker;
pub mod cache_events;
pub mod changes;
pub mod discovery;
pub mod event_state;
pub mod fan_out;
pub mod health;
pub mod health_flags;
pub mod hung;
pub mod loop_detection;
pub mod models;
pub mod pending_heads;
pub mod resolver;
pub mod servers;
pub mod sessions;
pub mod slots;
pub mod wait_history;
pub mod work;
pub mod worker;
