//! A sender's arena mapped so that what a reader writes stays its own. Kept from payload to payload, because to map
//! each anew is to find each of its pages by a fault; so what was written is undone when a payload is let go of.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use rustix::param::page_size;

use crate::lock;
use crate::mapping::Mapping;
use crate::write_tracker::{PAGE, WriteTracker};

pub struct PrivateView {
    pub mapping: Arc<Mapping>,
    /// As of the arena itself: bytes whose pages are in this process's table.
    pub entered: AtomicU64,
    /// What of it payloads take, by their starts. Another reader here of the same bytes needs pages of its own.
    taken: Mutex<BTreeSet<usize>>,
    /// Without, all of it may have been.
    written: Option<WriteTracker>,
}

impl PrivateView {
    /// `None` where it cannot be mapped, or a page would have bytes of more than one payload.
    pub fn new(file: &OwnedFd, len: usize) -> Option<Self> {
        if page_size() != PAGE {
            return None;
        }
        let (mapping, _) = Mapping::private(file, 0, len).ok()?;
        let written = WriteTracker::new(&mapping).ok();
        Some(Self {
            mapping: Arc::new(mapping),
            entered: AtomicU64::new(0),
            taken: Mutex::default(),
            written,
        })
    }

    /// False where the payload that begins there has a reader here already.
    pub fn take(&self, start: usize) -> bool {
        lock(&self.taken).insert(start)
    }

    /// Undoes what was written there, before anybody else has the memory.
    pub fn give_back(&self, start: usize, len: usize) {
        let (from, to) = (start & !(PAGE - 1), (start + len).next_multiple_of(PAGE));
        match &self.written {
            Some(written) => written.undo(&self.mapping, from..to),
            None => self.mapping.undo_writes(from, to - from),
        }
        lock(&self.taken).remove(&start);
    }
}
