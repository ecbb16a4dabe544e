//! Tells a process from a forked child of it. Leases and threads that a child finds in its memory belong to its parent.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::getpid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

/// The process's number, in a page that the kernel clears in a child. `None` if the kernel cannot.
static NUMBER: LazyLock<Option<&AtomicU32>> = LazyLock::new(|| {
    let (size, access) = (4096, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new page of zeros, which is never unmapped and is accessed through atomics alone.
    unsafe {
        let page = mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE).ok()?;
        madvise(page, size, Advice::LinuxWipeOnFork).ok()?;
        Some(&*page.cast::<AtomicU32>())
    }
});

impl Process {
    /// The calling process. This is one load; a system call would take longer than the rest of returning a payload.
    pub fn this() -> Self {
        let asked = || getpid().as_raw_nonzero().get().unsigned_abs();
        let Some(number) = *NUMBER else {
            return Self(asked());
        };
        match number.load(Relaxed) {
            0 => {
                let this = asked();
                number.store(this, Relaxed);
                Self(this)
            }
            known => Self(known),
        }
    }
}
