//! Provides pages before they are needed, and gives them back when they are not needed any more: a page that a copy finds
//! missing costs more than the copy.
//!
//! An arena starts with [`FIRST`] bytes present. It keeps as many bytes ahead of use as are used, up to [`MOST`]: a
//! process that sends small payloads holds a few MiB, and a thread of its own pays for growth. An arena that for a while
//! writes less than a quarter of what it holds keeps no more than it has in use, and as much ahead. Huge pages are asked
//! for; the kernel gives them if shared memory may have some (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`:
//! `advise`, `within_size`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::header::ArenaHeader;
use crate::lock;
use crate::mapping::Mapping;
use crate::process::Process;
use crate::space::Space;

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
    space: Arc<Space>,
    /// How long memory is kept without use.
    idle: Duration,
    /// Changes only while the space's ranges are locked.
    goal: std::sync::atomic::AtomicU64,
    stopped: AtomicBool,
}

impl Pages {
    pub fn start(
        mapping: Arc<Mapping>,
        capacity: u64,
        space: Arc<Space>,
        idle: Duration,
    ) -> std::io::Result<Self> {
        let prefault = Arc::new(PrefaultGoal {
            mapping,
            capacity,
            space,
            idle,
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
        let goal = self.prefault.goal_of(touched);
        if self.prefault.goal.fetch_max(goal, AcqRel) < goal
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }
}

impl PrefaultGoal {
    fn goal_of(&self, touched: u64) -> u64 {
        (touched + touched.clamp(FIRST, MOST)).min(self.capacity)
    }

    fn run(&self) {
        let header = ArenaHeader::of(&self.mapping);
        let (mut since, mut written) = (Instant::now(), 0);
        while !self.stopped.load(Acquire) {
            let present = header.present.load(Relaxed);
            let goal = self.goal.load(Acquire);
            if present < goal {
                let len = STEP.min(goal - present);
                let start = ArenaHeader::LEN + present as usize;
                match self.mapping.populate(start, len as usize) {
                    Ok(()) => {
                        header.present.store(present + len, Release);
                        continue;
                    }
                    Err(Errno::INVAL) => return, // An old kernel: writes provide the pages.
                    Err(_) => {}                 // Out of memory for now.
                }
            } else if goal <= 2 * FIRST {
                std::thread::park();
                since = Instant::now();
                continue;
            }
            let left = self.idle.saturating_sub(since.elapsed());
            if !left.is_zero() {
                std::thread::park_timeout(left);
                continue;
            }
            let now = self.space.written.load(Relaxed);
            if now - written < present / 4 {
                self.trim(header);
            }
            (since, written) = (Instant::now(), now);
        }
    }

    /// Gives back what lies behind the memory in use, but for what is kept ahead of it.
    fn trim(&self, header: &ArenaHeader) {
        let mut ranges = lock(&self.space.ranges);
        let end = ranges.extents.touched().max(header.present.load(Relaxed));
        self.space.give_up_slots(&mut ranges);
        ranges.extents.forget_free_end();
        let goal = self.goal_of(ranges.extents.touched());
        if end < goal + FIRST {
            return;
        }
        // A room that is taken from now on finds its pages missing, and provides them.
        self.goal.store(goal, Release);
        header.present.fetch_min(goal, AcqRel);
        let end = end.next_multiple_of(4096).min(self.capacity);
        self.mapping
            .free(ArenaHeader::LEN + goal as usize, (end - goal) as usize);
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
