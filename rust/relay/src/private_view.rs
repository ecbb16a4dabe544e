//! A private mapping of a sender's arena, in which a reader's writes are seen by no other process.
//!
//! It is kept for later payloads, because a new mapping would fault on each page. So a reader's writes are undone when
//! it returns its payload.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use rustix::param::page_size;

use crate::lock;
use crate::mapping::Mapping;
use crate::write_tracker::{PAGE, WriteTracker};

pub struct PrivateView {
    pub mapping: Arc<Mapping>,
    /// Bytes at the start of the data whose pages are in this process's page table.
    pub entered: AtomicU64,
    /// The starts of the payloads that have a reader in this view. A second reader of the same bytes needs another
    /// view.
    taken: Mutex<BTreeSet<usize>>,
    /// Some writes could not be undone: no other payload may be read in this view.
    is_spoiled: AtomicBool,
    /// Finds written pages. Without it, all pages count as written.
    written: Option<WriteTracker>,
}

impl PrivateView {
    /// Maps the arena's file of `len` bytes. `None` if that fails, or a page could have bytes of more than one payload.
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
            is_spoiled: false.into(),
            written,
        })
    }

    /// Takes the payload that begins at `start`. Returns false if it needs another view, because it has a reader in
    /// this one already, or because writes of earlier readers are left in it.
    pub fn take(&self, start: usize) -> bool {
        !self.is_spoiled.load(Acquire) && lock(&self.taken).insert(start)
    }

    /// Undoes the writes to a payload. Must precede the return of its ticket, after which the memory is reused.
    pub fn give_back(&self, start: usize, len: usize) {
        let (from, to) = (start & !(PAGE - 1), (start + len).next_multiple_of(PAGE));
        let is_undone = match &self.written {
            Some(written) => written.undo(&self.mapping, from..to),
            None => self.mapping.undo_writes(from, to - from),
        };
        if !is_undone {
            self.is_spoiled.store(true, Release);
        }
        lock(&self.taken).remove(&start);
    }
}
