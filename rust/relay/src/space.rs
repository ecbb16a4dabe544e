//! Which of an arena's memory is free: slots of a few sizes, taken without a lock, and ranges of any size.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::bitmap::Bitmap;
use crate::extents::{Extent, Extents};

/// A slot's size is a power of two from 16 KiB to 16 MiB plus a page: tensors tend to be powers of two, and the rest of
/// a payload is small.
pub const SMALLEST: u32 = 14;
pub const MARGIN: u64 = 4096;
const CLASSES: usize = 11;
/// At most so many words of slots of each size. Payloads beyond that get ranges.
pub const SLOT_WORDS: usize = 16;

/// Slots of one size, taken and put back without a lock.
pub struct Class {
    pub size: u64,
    pub free: Bitmap<SLOT_WORDS>,
    /// Where each slot starts; written before the slot is first put into `free`.
    pub starts: Box<[AtomicU64]>,
}

/// State that only large payloads and the cutting of new slots need. It has a lock: a large copy takes milliseconds,
/// and slots stay cut.
pub struct Ranges {
    pub extents: Extents,
    /// Numbers of each class that no slot has now, the lowest last.
    pub unused: [Vec<u32>; CLASSES],
}

/// Which of an arena's memory is free.
pub struct Space {
    pub classes: [Class; CLASSES],
    pub ranges: Mutex<Ranges>,
    /// Bytes of all rooms so far.
    pub written: AtomicU64,
}

impl Space {
    /// Bytes in unused slots.
    pub fn idle(&self) -> u64 {
        let free = |class: &Class| class.free.len() as u64 * class.size;
        self.classes.iter().map(free).sum()
    }

    pub fn give_up_slots(&self, ranges: &mut Ranges) {
        for (class, unused) in self.classes.iter().zip(&mut ranges.unused) {
            while let Some(number) = class.free.take() {
                ranges.extents.release(Extent {
                    start: class.starts[number as usize].load(Relaxed),
                    len: class.size,
                });
                unused.push(number);
            }
            unused.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}
