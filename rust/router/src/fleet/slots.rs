//! Hands out indices into tables that have an entry for each worker. The lowest free index is taken, so that tables
//! stay as short as the number of workers at a time, however many come and go.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

/// The slots of the whole process.
static SLOTS: Mutex<Free> = Mutex::new(Free {
    below: 0,
    free: BTreeSet::new(),
});

struct Free {
    /// All slots below this one were taken at some time; `free` holds those that are free again.
    below: u32,
    free: BTreeSet<u32>,
}

/// Keeps a slot taken for as long as it lives.
#[derive(Debug)]
pub struct Slot(u32);

impl Slot {
    pub fn take() -> Slot {
        let mut slots = slots();
        Slot(slots.free.pop_first().unwrap_or_else(|| {
            slots.below += 1;
            slots.below - 1
        }))
    }

    pub fn index(&self) -> u32 {
        self.0
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        slots().free.insert(self.0);
    }
}

fn slots() -> MutexGuard<'static, Free> {
    SLOTS.lock().expect("nothing under this lock panics")
}
