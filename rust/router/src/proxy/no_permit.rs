//! What a request is answered that may not go to a worker.

use std::time::Duration;

/// What is left of a tenant's rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// `requests` or `tokens`.
    pub unit: &'static str,
    /// What may come at once.
    pub burst: f64,
    pub left: f64,
    /// The time until all of it is there again.
    pub reset: Duration,
}

/// A request that gets no permit.
#[derive(Debug, PartialEq)]
pub struct NoPermit {
    pub why: String,
    /// Seconds after which its client may come back.
    pub retry_after: u64,
    /// The tenant's rates, if they are the reason.
    pub quotas: Vec<Quota>,
}
