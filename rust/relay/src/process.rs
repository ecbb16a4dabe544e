//! Tells a process from a forked child of it. Leases and threads that a child finds in its memory belong to its parent.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::getpid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

/// A random number of the process, in a page that the kernel clears in a child. `None` if the kernel cannot. Its pid
/// would not do: in a pid namespace of its own a child may have its parent's.
static NUMBER: LazyLock<Option<&AtomicU64>> = LazyLock::new(|| {
    let (size, access) = (4096, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new page of zeros, which is never unmapped and is accessed through atomics alone.
    unsafe {
        let page = mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE).ok()?;
        madvise(page, size, Advice::LinuxWipeOnFork).ok()?;
        Some(&*page.cast::<AtomicU64>())
    }
});

impl Process {
    /// The calling process. This is one load; a system call would take longer than the rest of returning a payload.
    pub fn this() -> Self {
        let pid = || u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
        let Some(number) = *NUMBER else {
            return Self(pid());
        };
        match number.load(Relaxed) {
            0 => {
                let drawn = drawn().unwrap_or_else(pid);
                // Another thread may have been first.
                let first = number.compare_exchange(0, drawn, Relaxed, Relaxed);
                Self(first.err().unwrap_or(drawn))
            }
            known => Self(known),
        }
    }
}

fn drawn() -> Option<u64> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    let read = rustix::rand::getrandom(&mut bytes, flags).ok()?;
    let number = u64::from_ne_bytes(bytes);
    (read == bytes.len() && number != 0).then_some(number)
}
