//! Finds room for payloads: slots of a few sizes, taken without a lock; ranges of any size; segments of their own.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::bitmap::Bitmap;
use crate::extents::{Extent, Extents};
use crate::header::ArenaHeader;
use crate::lock;
use crate::mapping::{self, Mapping};
use crate::pages::Pages;
use crate::segments::{ARENA, Segments};
use crate::space::{Class, MARGIN, Ranges, SLOT_WORDS, SMALLEST, Space};

/// Bytes that are cut into slots at once.
const CUT: u64 = 1 << 20;

/// The memory of an arena, as its owner sees it.
pub struct Memory {
    mapping: Arc<Mapping>,
    limit: u64,
    space: Arc<Space>,
    segments: Segments,
    next_segment: AtomicU64,
    pages: Pages,
}

/// Memory for one payload. Its writer and each ticket to it hold the room; the last of them to let go frees it.
pub struct Room {
    memory: Arc<Memory>,
    home: Home,
    pub offset: u64,
    pub len: u64,
}

enum Home {
    Slot { class: usize, number: u32 },
    Extent(Extent),
    Segment { number: u64, mapping: Mapping },
}

impl Memory {
    /// The memory of an arena of `capacity` bytes. Payloads of more than `limit` bytes get segments of their own. What
    /// is not used for as long as `idle` goes back to the kernel.
    pub fn new(
        mapping: Arc<Mapping>,
        capacity: u64,
        limit: u64,
        segments: Segments,
        idle: Duration,
    ) -> std::io::Result<Self> {
        let numbers = || (0..64 * SLOT_WORDS as u32).rev().collect();
        let space = Arc::new(Space {
            classes: std::array::from_fn(|class| Class {
                size: (1 << (SMALLEST + class as u32)) + MARGIN,
                free: Bitmap::empty(),
                starts: (0..64 * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect(),
            }),
            ranges: Mutex::new(Ranges {
                extents: Extents::new(capacity),
                unused: std::array::from_fn(|_| numbers()),
            }),
            written: AtomicU64::new(0),
        });
        Ok(Self {
            limit,
            segments,
            next_segment: AtomicU64::new(ARENA + 1),
            pages: Pages::start(mapping.clone(), capacity, space.clone(), idle)?,
            space,
            mapping,
        })
    }

    pub fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }

    pub fn header(&self) -> &ArenaHeader {
        ArenaHeader::of(&self.mapping)
    }

    /// Bytes of all rooms so far; each room is written once.
    pub fn written(&self) -> u64 {
        self.space.written.load(Relaxed)
    }

    /// Takes room for `len` bytes. Fails only if the payload needs a segment and none can be made.
    pub fn room(self: &Arc<Self>, len: u64) -> std::io::Result<Room> {
        let (home, offset) = self.find(len)?;
        self.space.written.fetch_add(len, Relaxed);
        Ok(Room {
            memory: self.clone(),
            home,
            offset,
            len,
        })
    }

    fn find(&self, len: u64) -> std::io::Result<(Home, u64)> {
        let classes = &self.space.classes;
        let fitting = classes.iter().position(|class| len <= class.size);
        if let Some(class) = fitting.filter(|_| len <= self.limit)
            && let Some(number) = classes[class].free.take().or_else(|| self.cut(class))
        {
            let start = classes[class].starts[number as usize].load(Relaxed);
            return Ok((Home::Slot { class, number }, start));
        }
        if len <= self.limit
            && let Some(extent) = self.range(&mut lock(&self.space.ranges), len)
        {
            return Ok((Home::Extent(extent), extent.start));
        }
        let file = mapping::create(len as usize)?;
        let mapping = Mapping::new(&file)?;
        let number = self.next_segment.fetch_add(1, Relaxed);
        lock(&self.segments).insert(number, Arc::new(file));
        Ok((Home::Segment { number, mapping }, 0))
    }

    /// Makes new slots of a class and takes one of them.
    fn cut(&self, index: usize) -> Option<u32> {
        let class = &self.space.classes[index];
        let mut ranges = lock(&self.space.ranges);
        // Another thread may have cut slots in the meantime.
        if let Some(number) = class.free.take() {
            return Some(number);
        }
        let wanted = (CUT / class.size)
            .max(1)
            .min(ranges.unused[index].len() as u64);
        if wanted == 0 {
            return None;
        }
        let extent = self
            .range(&mut ranges, wanted * class.size)
            .or_else(|| self.range(&mut ranges, class.size))?;
        let first = ranges.unused[index].pop()?;
        class.starts[first as usize].store(extent.start, Relaxed);
        for start in (extent.start..extent.start + extent.len)
            .step_by(class.size as usize)
            .skip(1)
        {
            let number = ranges.unused[index].pop()?;
            class.starts[number as usize].store(start, Relaxed);
            class.free.put(number);
        }
        Some(first)
    }

    /// Takes a free range. Before it takes memory that was never used, it gives up idle slots of other sizes if these
    /// have more than half of the memory.
    fn range(&self, ranges: &mut Ranges, len: u64) -> Option<Extent> {
        let touched = ranges.extents.touched();
        let found = ranges.extents.find(len);
        if found.is_none_or(|found| found.start + found.len > touched)
            && (found.is_none() || self.space.idle() > touched / 2)
        {
            self.space.give_up_slots(ranges);
        }
        let extent = ranges.extents.allocate(len)?;
        if ranges.extents.touched() > touched {
            self.pages.touched(ranges.extents.touched());
        }
        Some(extent)
    }
}

impl Room {
    /// 0 for the arena, otherwise the number of the room's own segment.
    pub fn segment(&self) -> u64 {
        match self.home {
            Home::Segment { number, .. } => number,
            _ => ARENA,
        }
    }

    /// The start of the room's `len` writable bytes, 64-byte aligned, with their pages present.
    pub fn ready(&self) -> *mut u8 {
        let (mapping, start, present) = match &self.home {
            Home::Segment { mapping, .. } => (mapping, 0, 0),
            _ => (
                &*self.memory.mapping,
                ArenaHeader::LEN + self.offset as usize,
                self.memory.header().present.load(Acquire),
            ),
        };
        let missing = (self.offset + self.len)
            .saturating_sub(present)
            .min(self.len) as usize;
        if missing > 0 {
            // One call is far cheaper than a fault for each page.
            // Without it, the copy's own faults provide them.
            let _ = mapping.populate(start + self.len as usize - missing, missing);
        }
        // SAFETY: the room lies inside its mapping.
        unsafe { mapping.start().add(start) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        match &self.home {
            Home::Slot { class, number } => self.memory.space.classes[*class].free.put(*number),
            Home::Extent(extent) => lock(&self.memory.space.ranges).extents.release(*extent),
            Home::Segment { number, .. } => drop(lock(&self.memory.segments).remove(number)),
        }
    }
}

#[cfg(all(test, not(any(miri, feature = "loom"))))]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(capacity: u64) -> Arc<Memory> {
        memory_of(capacity, Duration::from_secs(600)).0
    }

    /// The memory of an arena, and its file.
    fn memory_of(capacity: u64, idle: Duration) -> (Arc<Memory>, OwnedFd) {
        let file = mapping::create(ArenaHeader::LEN + capacity as usize).unwrap();
        let mapping = Arc::new(Mapping::new(&file).unwrap());
        let memory = Memory::new(mapping, capacity, capacity, Segments::default(), idle);
        (Arc::new(memory.unwrap()), file)
    }

    fn touched(memory: &Memory) -> u64 {
        lock(&memory.space.ranges).extents.touched()
    }

    #[test]
    fn a_slot_that_was_freed_is_taken_next() {
        let memory = memory(64 * MIB);
        let kept = memory.room(MIB).unwrap();
        let first = memory.room(MIB).unwrap();
        let (place, before) = (first.offset, touched(&memory));
        assert_ne!(place, kept.offset);
        drop(first);
        for len in [MIB, MIB / 2 + 5000, MIB + MARGIN] {
            assert_eq!(memory.room(len).unwrap().offset, place);
        }
        assert_eq!(touched(&memory), before);
    }

    #[test]
    fn idle_slots_are_given_up_before_more_memory_is_touched() {
        let memory = memory(64 * MIB);
        let slots: Vec<_> = (0..20).map(|_| memory.room(MIB).unwrap()).collect();
        let before = touched(&memory);
        drop(slots);
        // Of another size of slots, and larger than any slot.
        let rooms = [4 * MIB, 14 * MIB].map(|len| memory.room(len).unwrap());
        assert!(rooms[0].offset + rooms[0].len <= rooms[1].offset);
        assert_eq!(touched(&memory), before);
    }

    #[test]
    fn a_payload_that_does_not_fit_the_arena_gets_a_segment_of_its_own() {
        let memory = memory(8 * MIB);
        let all = memory.room(8 * MIB).unwrap();
        let own = memory.room(MIB).unwrap();
        assert_eq!(all.segment(), ARENA);
        assert_ne!(own.segment(), ARENA);
        // SAFETY: the room is ours and that long.
        unsafe { own.ready().write_bytes(1, MIB as usize) };
        drop((all, own));
        assert_eq!(memory.room(MIB).unwrap().segment(), ARENA);
        assert!(lock(&memory.segments).is_empty());
    }

    /// Waits, and fails after a while.
    fn until(done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn what_is_not_used_any_more_goes_back_to_the_kernel() {
        let (memory, file) = memory_of(256 * MIB, Duration::from_millis(50));
        let allocated = || rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
        let write = |len: u64, value: u8| {
            let room = memory.room(len).unwrap();
            // SAFETY: the room is ours and that long.
            unsafe { room.ready().write_bytes(value, len as usize) };
            room
        };
        let kept = write(3 * MIB, 5);
        let large: Vec<_> = (0..3).map(|value| write(40 * MIB, value)).collect();
        assert!(allocated() > 120 * MIB);
        // What is in use stays, whatever its place.
        drop(large);
        until(|| allocated() < 16 * MIB);
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(kept.ready(), 3 << 20) };
        assert!(bytes.iter().all(|&byte| byte == 5));
        drop(kept);
        until(|| memory.header().present.load(Acquire) <= 4 * MIB);
        // Memory that came back is used as before.
        let again = write(40 * MIB, 7);
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(again.ready(), 40 << 20) };
        assert!(bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn pages_are_present_ahead_of_use_and_few_without_use() {
        let memory = memory(256 * MIB);
        let reaches = |bytes: u64| until(|| memory.header().present.load(Acquire) >= bytes);
        reaches(4 * MIB);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(memory.header().present.load(Acquire), 4 * MIB);
        let room = memory.room(20 * MIB).unwrap();
        reaches(room.offset + 2 * room.len);
        drop(room);
        assert!(memory.header().present.load(Acquire) <= 41 * MIB);
    }
}
