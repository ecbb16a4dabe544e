//! First-fit allocation of byte ranges. Low addresses are reused first, so that the high end of an arena stays without
//! memory behind it.

use std::collections::BTreeMap;

const PAGE: u64 = 4096;

#[derive(Debug)]
pub struct Extents {
    /// Free ranges, start -> length. None is empty, and no two touch.
    free: BTreeMap<u64, u64>,
    /// Everything below has been handed out before.
    touched: u64,
}

/// A range of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: u64,
    pub len: u64,
}

impl Extents {
    pub fn new(capacity: u64) -> Self {
        Self {
            free: BTreeMap::from([(0, capacity)]),
            touched: 0,
        }
    }

    /// Nothing from this offset on was ever handed out.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// The extent that `allocate` would return now.
    pub fn find(&self, len: u64) -> Option<Extent> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let (&start, _) = self.free.iter().find(|&(_, &size)| len <= size)?;
        Some(Extent { start, len })
    }

    pub fn allocate(&mut self, len: u64) -> Option<Extent> {
        let extent = self.find(len)?;
        let size = self.free.remove(&extent.start)?;
        let end = extent.start + extent.len;
        if size > extent.len {
            self.free.insert(end, size - extent.len);
        }
        self.touched = self.touched.max(end);
        Some(extent)
    }

    /// Forgets that the free memory behind the last extent was handed out before.
    pub fn forget_free_end(&mut self) {
        let last = self.free.last_key_value();
        if let Some((&start, _)) = last.filter(|&(start, len)| start + len >= self.touched) {
            self.touched = start;
        }
    }

    pub fn release(&mut self, extent: Extent) {
        let (mut start, mut len) = (extent.start, extent.len);
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            self.free.remove(&before);
            start = before;
            len += size;
        }
        if let Some(size) = self.free.remove(&(extent.start + extent.len)) {
            len += size;
        }
        self.free.insert(start, len);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_back_as_one_range() {
        let mut extents = Extents::new(1 << 20);
        let taken: Vec<_> = [100, 5000, 64, 70_000, 1]
            .map(|len| extents.allocate(len).unwrap())
            .into();
        for (a, b) in taken.iter().zip(&taken[1..]) {
            assert!(a.start + a.len <= b.start || b.start + b.len <= a.start);
        }
        for index in [3, 0, 4, 1, 2] {
            extents.release(taken[index]);
        }
        assert_eq!(extents.free, BTreeMap::from([(0, 1 << 20)]));
    }

    #[test]
    fn freed_memory_is_reused_before_fresh_memory() {
        let mut extents = Extents::new(1 << 20);
        let first = extents.allocate(8192).unwrap();
        extents.release(first);
        assert_eq!(extents.allocate(8192), Some(first));
        assert_eq!(extents.touched(), 8192);
    }

    #[test]
    fn a_free_end_is_forgotten_up_to_the_last_extent() {
        let mut extents = Extents::new(1 << 20);
        let taken = [4096, 8192, 4096].map(|len| extents.allocate(len).unwrap());
        extents.forget_free_end();
        assert_eq!(extents.touched(), 16384);
        extents.release(taken[0]);
        extents.release(taken[2]);
        extents.forget_free_end();
        assert_eq!(extents.touched(), 12288);
        extents.release(taken[1]);
        extents.forget_free_end();
        assert_eq!(extents.touched(), 0);
    }

    #[test]
    fn a_full_range_refuses() {
        let mut extents = Extents::new(8192);
        assert!(extents.allocate(8193).is_none());
        let all = extents.allocate(8192).unwrap();
        assert!(extents.allocate(1).is_none());
        extents.release(all);
        assert!(extents.allocate(1).is_some());
    }
}
