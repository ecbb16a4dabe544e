//! What has come of a worker's events about its cache.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};
use sglang_omni_policy::blocks::event::Coverage;

use crate::base::clock::{self, Tick};

#[derive(Default)]
pub struct EventState {
    coverage: AtomicU8,
    batches: AtomicU64,
    /// When the last one came; 0 if none did.
    at: AtomicU32,
}

impl EventState {
    /// Counts a batch.
    pub fn count(&self, now: Tick) {
        self.batches.fetch_add(1, Relaxed);
        self.at.store(now, Relaxed);
    }

    pub fn batches(&self) -> u64 {
        self.batches.load(Relaxed)
    }

    pub fn cover(&self, coverage: Coverage) {
        self.coverage.store(coverage as u8, Relaxed);
    }

    /// 0 if none of the cache is known, 1 if a part is, 2 if the whole is.
    pub fn coverage(&self) -> u8 {
        self.coverage.load(Relaxed)
    }

    /// Seconds since the last batch; None before the first one.
    pub fn age(&self) -> Option<f32> {
        let at = self.at.load(Relaxed);
        (at > 0).then(|| clock::seconds(clock::now().saturating_sub(at)))
    }

    /// As JSON; null if no event ever came and none can.
    pub fn describe(&self) -> Value {
        let known = Coverage::ALL[usize::from(self.coverage())];
        if known == Coverage::None && self.batches() == 0 {
            return Value::Null;
        }
        json!({"coverage": known.name(), "batches": self.batches(), "age": self.age()})
    }
}
