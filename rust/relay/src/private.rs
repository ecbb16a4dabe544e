//! A sender's arena mapped so that what a reader writes stays its own. Kept from payload to payload, because to map
//! each anew is to find each of its pages by a fault; so what was written is undone when a payload is let go of.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use rustix::param::page_size;

use crate::lock;
use crate::mapping::Mapping;

/// The size of the pages that rooms consist of.
const PAGE: usize = 4096;
/// A page's entry in `/proc/self/pagemap`: whether it is there or swapped, and whether it is still the file's.
const THERE: u64 = 0b11 << 62;
const OF_FILE: u64 = 1 << 61;

pub struct PrivateView {
    pub mapping: Arc<Mapping>,
    /// As of the arena itself: bytes whose pages are in this process's table.
    pub entered: AtomicU64,
    /// What of it payloads take, by their starts. Another reader here of the same bytes needs pages of its own.
    taken: Mutex<BTreeSet<usize>>,
    /// Says what was written; without, all of it may have been.
    pagemap: Option<File>,
}

impl PrivateView {
    /// `None` where it cannot be mapped, or a page would have bytes of more than one payload.
    pub fn new(file: &OwnedFd, len: usize) -> Option<Self> {
        if page_size() != PAGE {
            return None;
        }
        let (mapping, _) = Mapping::private(file, 0, len).ok()?;
        Some(Self {
            mapping: Arc::new(mapping),
            entered: AtomicU64::new(0),
            taken: Mutex::default(),
            pagemap: File::open("/proc/self/pagemap").ok(),
        })
    }

    /// False where the payload that begins there has a reader here already.
    pub fn take(&self, start: usize) -> bool {
        lock(&self.taken).insert(start)
    }

    /// Undoes what was written there, before anybody else has the memory.
    pub fn give_back(&self, start: usize, len: usize) {
        let (from, to) = (start & !(PAGE - 1), (start + len).next_multiple_of(PAGE));
        if self.written(from, to).unwrap_or(true) {
            self.mapping.undo_writes(from, to - from);
        }
        lock(&self.taken).remove(&start);
    }

    /// Whether any of those pages is not the file's any more.
    fn written(&self, from: usize, to: usize) -> Option<bool> {
        let pagemap = self.pagemap.as_ref()?;
        let first = (self.mapping.start() as usize + from) / PAGE;
        let mut at = 8 * first as u64;
        let mut left = 8 * ((to - from) / PAGE);
        let mut entries = [0u8; 8192];
        while left > 0 {
            let now = left.min(entries.len());
            pagemap.read_exact_at(&mut entries[..now], at).ok()?;
            let mut each = entries[..now].chunks_exact(8);
            let is_written = |entry: &[u8]| {
                let entry = u64::from_ne_bytes(entry.try_into().expect("8 bytes"));
                entry & THERE != 0 && entry & OF_FILE == 0
            };
            if each.any(is_written) {
                return Some(true);
            }
            (at, left) = (at + now as u64, left - now);
        }
        Some(false)
    }
}
