//! Counts the changes of which workers there are and which of them may get requests, so that not every request has to
//! look at all of them.

use std::sync::atomic::{AtomicU64, Ordering};

static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Called after a change.
pub fn count() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Read before the state that it is about: what is read afterwards may be newer, and is then read again.
pub fn so_far() -> u64 {
    CHANGES.load(Ordering::Acquire)
}
