//! What the router tells of itself: what is counted ([`metrics`], [`histogram`]), how it is written
//! ([`prometheus`]) and given out ([`scrape`]), and the [`log`].

pub mod histogram;
pub mod log;
pub mod metrics;
pub mod prometheus;
pub mod scrape;
