//! The workers: who they are, and what is known of each.
//!
//! A [`worker`] has a place of its own in tables ([`slots`]) and serves [`models`];
//! [`discovery`] finds more of them. Its [`standing`]
//! among the others is moved by its probes ([`health`]), by its failures ([`breaker`]) and by requests that
//! are [`waiting`] for longer than those like them took ([`first_bytes`]), which shows that it is [`hung`].
//! One that is a router and leads back to this one is found in a [`chain`]. [`fan_out`] asks all workers at
//! once.

pub mod breaker;
pub mod chain;
pub mod discovery;
pub mod fan_out;
pub mod first_bytes;
pub mod health;
pub mod hung;
pub mod models;
pub mod resolver;
pub mod slots;
pub mod standing;
pub mod waiting;
pub mod worker;
