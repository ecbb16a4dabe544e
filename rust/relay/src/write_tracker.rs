//! Finds the pages of a private mapping that were written to since they last showed the file.
//!
//! `/proc/self/pagemap` tells, but looks at the page behind every entry of the page table: 30 ns a page, half of the
//! time that reading the page takes. From Linux 6.7 on the kernel can mark the entries and clear a mark at the first
//! write (an asynchronous write-protecting userfaultfd, which delivers no faults): 1 ns a page. A page without a mark
//! may have been written to and is looked up. Some sandboxes refuse userfaultfd.

use std::fs::File;
use std::io::{Error, Result};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::mapping::Mapping;

/// The page size that the calls below count in.
pub const PAGE: usize = 4096;
/// Bits of a page's entry in the pagemap: present; swapped, or absent with a mark; the file's; marked.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
const MARKED: u64 = 1 << 57;

/// `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const API: u64 = 0xaa;
const WRITE_PROTECT_SHMEM: u64 = 1 << 12;
const WRITE_PROTECT_ABSENT: u64 = 1 << 13;
const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
/// A userfaultfd that handles only user-mode faults needs no privileges. Asynchronous protection delivers none.
const USER_MODE_ONLY: u32 = 1;
const UFFDIO_API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0);

/// `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The category of pages without a mark.
const WRITTEN: u64 = 1 << 1;
/// Marks the pages that were found; works only in registered memory.
const MARK: u64 = 0b11;
const PAGEMAP_SCAN: Opcode = opcode::read_write::<Scan>(b'f', 16);

pub struct WriteTracker {
    pagemap: File,
    /// Keeps the marks; `None` if the kernel cannot mark pages.
    marks: Option<OwnedFd>,
}

impl WriteTracker {
    pub fn new(mapping: &Mapping) -> Result<Self> {
        Ok(Self {
            pagemap: File::open("/proc/self/pagemap")?,
            marks: marks(mapping).ok(),
        })
    }

    /// Undoes the writes to whole pages of the mapping, to which no thread may write meanwhile. Returns false if they
    /// are still there.
    #[must_use]
    pub fn undo(&self, mapping: &Mapping, bytes: Range<usize>) -> bool {
        let start = mapping.start() as usize;
        let pages = start + bytes.start..start + bytes.end;
        if self.marks.is_some() && !self.any_unmarked(&pages).unwrap_or(true) {
            return true;
        }
        let any_private = self.any_private(&pages).unwrap_or(true);
        if any_private && !mapping.undo_writes(bytes.start, bytes.len()) {
            return false;
        }
        if self.marks.is_some() {
            // One call instead of a fault for each page. Also, a write to a marked page that is absent copies the page,
            // mark and all, before it writes.
            let is_there = mapping.enter(bytes.start, bytes.len());
            // If this reader wrote, the next one may too, and each marked page would cost it a fault.
            if is_there && !any_private {
                // If it fails, the pages are looked up again next time.
                let _ = self.scan(Scan {
                    flags: MARK,
                    ..Scan::of(&pages)
                });
            }
        }
        true
    }

    fn any_unmarked(&self, pages: &Range<usize>) -> Result<bool> {
        let mut found = Region::default();
        self.scan(Scan {
            vec: &raw mut found as u64,
            vec_len: 1,
            max_pages: 1,
            ..Scan::of(pages)
        })?;
        Ok(found.end > 0)
    }

    fn scan(&self, mut scan: Scan) -> Result<()> {
        // SAFETY: the opcode takes such a structure, which names a live region or none, and changes no memory's
        // content.
        let done = unsafe { ioctl(&self.pagemap, Updater::<PAGEMAP_SCAN, Scan>::new(&mut scan)) };
        done.map_err(Error::from)
    }

    /// Whether any of those pages no longer shows the file.
    fn any_private(&self, pages: &Range<usize>) -> Result<bool> {
        let mut at = 8 * (pages.start / PAGE) as u64;
        let mut left = 8 * (pages.len() / PAGE);
        let mut entries = [0u8; 8192];
        while left > 0 {
            let now = left.min(entries.len());
            self.pagemap.read_exact_at(&mut entries[..now], at)?;
            let mut each = entries[..now].chunks_exact(8);
            let is_private = |entry: &[u8]| {
                let entry = u64::from_ne_bytes(entry.try_into().expect("8 bytes"));
                let is_swapped = entry & SWAPPED != 0 && entry & MARKED == 0;
                (entry & PRESENT != 0 || is_swapped) && entry & OF_FILE == 0
            };
            if each.any(is_private) {
                return Ok(true);
            }
            (at, left) = (at + now as u64, left - now);
        }
        Ok(false)
    }
}

impl Scan {
    fn of(pages: &Range<usize>) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            start: pages.start as u64,
            end: pages.end as u64,
            category_mask: WRITTEN,
            return_mask: WRITTEN,
            ..Self::default()
        }
    }
}

/// Has the kernel clear the marks of pages of this mapping that are written to, as long as the returned file is open.
fn marks(mapping: &Mapping) -> Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: the registration below holds up no fault and changes no memory's content.
    let marks = unsafe { userfaultfd(flags)? };
    let mut api = Api {
        api: API,
        features: WRITE_PROTECT_SHMEM | WRITE_PROTECT_ABSENT | WRITE_PROTECT_ASYNC,
        ioctls: 0,
    };
    // SAFETY: the opcode takes such a structure.
    unsafe { ioctl(&marks, Updater::<UFFDIO_API, Api>::new(&mut api))? };
    let mut register = Register {
        start: mapping.start() as u64,
        len: mapping.len().next_multiple_of(PAGE) as u64,
        mode: MODE_WRITE_PROTECT,
        ioctls: 0,
    };
    // SAFETY: as above, and the range belongs to the mapping.
    unsafe {
        ioctl(
            &marks,
            Updater::<UFFDIO_REGISTER, Register>::new(&mut register),
        )?;
    }
    Ok(marks)
}

#[cfg(all(test, not(any(miri, feature = "loom"))))]
mod tests {
    use super::*;
    use crate::mapping;

    const LEN: usize = 64 * PAGE;

    /// Undoes the pages; returns whether any had been written to.
    fn undone(written: &WriteTracker, view: &Mapping, pages: Range<usize>) -> bool {
        let start = view.start() as usize;
        let addresses = start + pages.start * PAGE..start + pages.end * PAGE;
        let undone = written.any_private(&addresses).unwrap();
        assert!(written.undo(view, pages.start * PAGE..pages.end * PAGE));
        let is_marked = || !written.any_unmarked(&addresses).unwrap();
        assert!(undone || written.marks.is_none() || is_marked());
        undone
    }

    fn at(view: &Mapping, page: usize) -> *mut u8 {
        // SAFETY: the tests name pages of the mapping.
        unsafe { view.start().add(page * PAGE + 9) }
    }

    fn check(with_marks: bool) {
        let file = mapping::create(LEN).unwrap();
        let sender = Mapping::new(&file).unwrap();
        let (view, _) = Mapping::private(&file, 0, LEN).unwrap();
        let mut written = WriteTracker::new(&view).unwrap();
        if !with_marks {
            written.marks = None;
        }
        // SAFETY: bytes of the view, to which there are no references.
        let value = |page| unsafe { at(&view, page).read_volatile() };
        // SAFETY: as above.
        let write = |page| unsafe { at(&view, page).write_volatile(1) };
        // Twice: before there are marks, and with them. Page 3 was present and page 20 was not.
        for _ in 0..2 {
            assert_eq!(value(3), 0);
            assert!(!undone(&written, &view, 0..32));
            write(3);
            assert!(!undone(&written, &view, 8..32));
            assert!(undone(&written, &view, 0..8));
            assert_eq!(value(3), 0);
            assert!(!undone(&written, &view, 0..32));
            write(20);
            assert!(undone(&written, &view, 0..32));
        }
        // The kernel writes.
        for page in [3, 21] {
            let (from, to) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&to, &[5]).unwrap();
            // SAFETY: a byte of the view.
            let byte = unsafe { std::slice::from_raw_parts_mut(at(&view, page), 1) };
            assert_eq!(rustix::io::read(&from, &mut *byte).unwrap(), 1);
            assert!(undone(&written, &view, 0..32));
        }
        // Pages that are dropped and come back, and a write of the owner.
        assert!(view.enter(0, LEN));
        // SAFETY: as above, of the sender's mapping.
        unsafe { at(&sender, 3).write_volatile(7) };
        assert!(!undone(&written, &view, 0..64));
        assert_eq!(value(3), 7);
        assert!(view.undo_writes(0, LEN));
        assert!(!undone(&written, &view, 0..64));
        for page in 0..64 {
            write(page);
            assert!(undone(&written, &view, page..page + 1), "page {page}");
            assert_ne!(value(page), 1, "page {page}");
        }
        assert_eq!(value(3), 7);
    }

    #[test]
    fn writes_are_found_by_marks() {
        check(true);
    }

    #[test]
    fn writes_are_found_without_marks() {
        check(false);
    }
}
