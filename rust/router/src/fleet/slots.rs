//! Hands out indices into tables that have an entry for each worker. The lowest free index is taken, so that tables
//! stay as short as the number of workers at a time, however many come and go.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard};

/// The slots of the whole process.
static SLOTS: Mutex<Free> = Mutex::new(Free {
    below: 0,
    free: BTreeSet::new(),
    loads: Vec::new(),
});

struct Free {
    /// All slots below this one were taken at some time; `free` holds those that are free again.
    below: u32,
    free: BTreeSet<u32>,
    /// The loads of all slots ever taken, `CHUNK` by `CHUNK`. They are never freed.
    loads: Vec<&'static [AtomicU32; CHUNK]>,
}

const CHUNK: usize = 256;

/// Keeps a slot taken for as long as it lives.
#[derive(Debug)]
pub struct Slot {
    index: u32,
    load: &'static AtomicU32,
}

impl Slot {
    pub fn take() -> Slot {
        let mut slots = slots();
        let index = slots.free.pop_first().unwrap_or_else(|| {
            slots.below += 1;
            slots.below - 1
        });
        let (chunk, place) = (index as usize / CHUNK, index as usize % CHUNK);
        if chunk == slots.loads.len() {
            let loads = Box::new([const { AtomicU32::new(0) }; CHUNK]);
            slots.loads.push(Box::leak(loads));
        }
        let load = &slots.loads[chunk][place];
        Slot { index, load }
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    /// The worker's requests in flight. Every choice reads those of all workers, so they lie side by side.
    pub fn load(&self) -> &'static AtomicU32 {
        self.load
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        slots().free.insert(self.index);
    }
}

fn slots() -> MutexGuard<'static, Free> {
    SLOTS.lock().expect("nothing under this lock panics")
}
