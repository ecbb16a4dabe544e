//! Provides pages before they are needed: a page that a copy finds missing costs more than the copy.
//!
//! An arena starts with [`FIRST`] bytes present. It keeps as many bytes ahead of use as are used, up to [`MOST`]: a
//! process that sends small payloads holds a few MiB, and a thread of its own pays for growth. Huge pages are asked
//! for; the kernel gives them if shared memory may have some (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`:
//! `advise`, `within_size`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread::JoinHandle;

use crate::header::ArenaHeader;
use crate::mapping::Mapping;
use crate::process::Process;

/// Bytes present ahead of use: at least, and at most.
const FIRST: u64 = 4 << 20;
const MOST: u64 = 64 << 20;
/// Bytes provided in one call: it takes a fraction of a millisecond, and the thread's end waits for no more.
const STEP: u64 = 1 << 20;

/// Keeps the low end of an arena's memory present, ahead of use, in one thread per arena.
pub struct Pages {
    owner: Process,
    prefault: Arc<PrefaultGoal>,
    thread: Option<JoinHandle<()>>,
}

struct PrefaultGoal {
    mapping: Arc<Mapping>,
    capacity: u64,
    goal: std::sync::atomic::AtomicU64,
    stopped: AtomicBool,
}

impl Pages {
    pub fn start(mapping: Arc<Mapping>, capacity: u64) -> std::io::Result<Self> {
        let prefault = Arc::new(PrefaultGoal {
            mapping,
            capacity,
            goal: FIRST.min(capacity).into(),
            stopped: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new()
            .name("relay-pages".into())
            .spawn({
                let prefault = prefault.clone();
                move || prefault.run()
            })?;
        Ok(Self {
            owner: Process::this(),
            prefault,
            thread: Some(thread),
        })
    }

    /// Notes that everything below `touched` is or was in use.
    pub fn touched(&self, touched: u64) {
        let ahead = touched.clamp(FIRST, MOST);
        let goal = (touched + ahead).min(self.prefault.capacity);
        if self.prefault.goal.fetch_max(goal, AcqRel) < goal
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }
}

impl PrefaultGoal {
    fn run(&self) {
        let header = ArenaHeader::of(&self.mapping);
        while !self.stopped.load(Acquire) {
            let present = header.present.load(Relaxed);
            let goal = self.goal.load(Acquire);
            if present >= goal {
                std::thread::park();
                continue;
            }
            let len = STEP.min(goal - present);
            if !self
                .mapping
                .populate(ArenaHeader::LEN + present as usize, len as usize)
            {
                return; // Out of memory, or an old kernel: writes provide the pages.
            }
            header.present.store(present + len, Release);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.owner != Process::this() {
            return std::mem::forget(thread);
        }
        self.prefault.stopped.store(true, Release);
        if let Some(thread) = thread {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
