//! Memory that is not needed any more is given back: what a rush of requests took, what the policy remembers.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};

use crate::proxy::lane::Shared;

const EVERY: Duration = Duration::from_secs(15);

/// Looks for a moment without requests behind some, every now and then, until the runtime ends. The
/// allocator keeps what lies between memory in use (the prefix tree's, as a rule), though never so much of
/// it was needed again at once; returning it takes milliseconds, during which allocations wait.
pub async fn give_back(shared: Arc<Shared>) {
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut received = 0;
    loop {
        every.tick().await;
        let now = shared.metrics.received_bytes();
        if now != received && shared.metrics.in_flight() == 0 {
            received = now;
            trim();
        }
    }
}

/// Has the policy tidy up at every eviction interval, until the runtime ends.
pub async fn tidy_policy(shared: Arc<Shared>) {
    let every = shared.config.eviction_interval;
    let Some(first) = Instant::now().checked_add(every) else {
        return pending().await;
    };
    let mut tick = interval_at(first, every);
    loop {
        tick.tick().await;
        shared.policy.maintain(&shared.fleet.read());
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
