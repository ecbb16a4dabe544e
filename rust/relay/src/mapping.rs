//! Creates anonymous memory files and maps them.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};
use rustix::param::page_size;

/// A memory file or part of one, mapped for reading and writing, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is a range of memory without thread affinity. Its bytes are accessed only through
// atomics, or through pointers whose users vouch for exclusive access.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Creates a memory file of a fixed size. It is sealed, so that no peer can shrink it while it is read.
pub fn create(len: usize) -> Result<OwnedFd> {
    let file = memfd_create(
        "sglang-omni",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The size of a file; an error unless the file is sealed against shrinking.
fn sealed_len(file: &impl AsFd) -> Result<usize> {
    if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        return Err(rustix::io::Errno::INVAL);
    }
    Ok(fstat(file)?.st_size as usize)
}

impl Mapping {
    /// Maps a file that came from [`create`], in this process or another.
    pub fn new(file: &impl AsFd) -> Result<Self> {
        let len = sealed_len(file)?;
        // SAFETY: a new mapping at an address that the kernel chooses; the seal keeps the pages in the file.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        // May fail: most kernels are configured to give shared memory small pages.
        // SAFETY: the range is the new mapping, and the advice does not change its contents.
        let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// Maps the pages of `len` bytes at `offset` of such a file privately: writes to them are not seen elsewhere. Also
    /// returns the offset of those bytes in the mapping. Valid only while the file is not written to there, because a
    /// page that was written to here does not show later writes to the file.
    pub fn private(file: &impl AsFd, offset: usize, len: usize) -> Result<(Self, usize)> {
        let end = offset.checked_add(len).filter(|_| len > 0);
        let Some(end) = end.filter(|end| sealed_len(file).is_ok_and(|size| *end <= size)) else {
            return Err(rustix::io::Errno::INVAL);
        };
        let start = offset - offset % page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Few pages are ever written to, so no memory is reserved for all of them.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses; the seal keeps the pages in the file.
        let mapped = unsafe { mmap(nowhere, end - start, access, flags, file, start as u64)? };
        let mapping = Self {
            start: NonNull::new(mapped.cast()).ok_or(rustix::io::Errno::NOMEM)?,
            len: end - start,
        };
        Ok((mapping, offset - start))
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    #[allow(clippy::len_without_is_empty)] // memory files are never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes every write from `offset` on a fault. `offset` is a multiple of the page size.
    pub fn forbid_writes(&self, offset: usize) -> Result<()> {
        let len = self.len - offset;
        // SAFETY: the range is inside the mapping, and Rust code writes to none of it.
        unsafe { mprotect(self.start().add(offset).cast(), len, MprotectFlags::READ) }
    }

    /// Drops what was written to whole pages of a private mapping, which then show the file again. Returns false if the
    /// kernel refuses, as it does for locked memory.
    #[must_use]
    pub fn undo_writes(&self, offset: usize, len: usize) -> bool {
        let len = len.min(self.len - offset);
        // SAFETY: the range is inside the mapping, and no pointer into it is used any more.
        unsafe { madvise(self.start().add(offset).cast(), len, Advice::LinuxDontNeed) }.is_ok()
    }

    /// Gives whole pages back to the kernel: they are zeros when they are next touched. Does nothing if the kernel
    /// refuses.
    pub fn free(&self, offset: usize, len: usize) {
        // SAFETY: the range is inside the mapping, and no payload is in it.
        let _ = unsafe { madvise(self.start().add(offset).cast(), len, Advice::LinuxRemove) };
    }

    /// Has the kernel provide pages in one call, which is far cheaper than a fault for each. An error if it did not,
    /// because memory is used up or the kernel is too old (EINVAL); faults then provide them.
    pub fn populate(&self, offset: usize, len: usize) -> Result<()> {
        self.advise(offset, len, Advice::LinuxPopulateWrite)
    }

    /// Enters pages that another process has provided into this process's page table. Returns false if the kernel did
    /// not.
    pub fn enter(&self, offset: usize, len: usize) -> bool {
        self.advise(offset, len, Advice::LinuxPopulateRead).is_ok()
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<()> {
        let from = offset & !4095;
        let to = (offset + len).next_multiple_of(4096).min(self.len);
        // SAFETY: the range is inside the mapping and the advice does not change its contents.
        unsafe { madvise(self.start().add(from).cast(), to - from, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this mapping, and every user of a pointer into it kept the mapping alive.
        let _ = unsafe { munmap(self.start().cast(), self.len) };
    }
}
