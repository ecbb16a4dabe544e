//! Returns memory to the system that a rush of requests took and that is not needed any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::base::metrics::Metrics;

const EVERY: Duration = Duration::from_secs(15);

/// Runs until the runtime ends; acts at moments without requests, if there were some before. The allocator keeps free
/// memory that lies between pieces in use (the prefix tree's, as a rule). Returning it takes milliseconds, during
/// which allocations wait.
pub async fn give_back(metrics: Arc<Metrics>) {
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut received = 0;
    loop {
        every.tick().await;
        let now = metrics.received_bytes();
        if now != received && metrics.in_flight() == 0 {
            received = now;
            trim();
        }
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators return memory by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}
