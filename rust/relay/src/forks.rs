//! What a fork must leave in order: locks that another thread has at that moment, which no thread of the child
//! would let go of, and connections whose end tells a peer that this process is gone.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rustix::event::{EventfdFlags, eventfd};

use crate::lock;
use crate::process::Process;
use crate::remotes::{self, Remotes};

/// Files that end with this process, though it may have children.
static FILES: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());
/// Stands in a child in place of each of them, so that their numbers are not given to other files which code that
/// has the number would then close. There once forks are watched.
static STAND_IN: OnceLock<OwnedFd> = OnceLock::new();

type Locks = (
    MutexGuard<'static, Remotes>,
    MutexGuard<'static, BTreeSet<RawFd>>,
);

thread_local! {
    /// Held by the thread that forks, while it does.
    static LOCKS: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

/// A file that no forked child has.
#[derive(Debug)]
pub struct Own<F: AsFd>(ManuallyDrop<F>);

impl<F: AsFd> Own<F> {
    /// What `open` returns. It must not wait for anything: forks wait for it.
    pub fn open<E: From<std::io::Error>>(open: impl FnOnce() -> Result<F, E>) -> Result<Self, E> {
        watch_forks()?;
        let mut files = lock(&FILES);
        let file = open()?;
        files.insert(file.as_fd().as_raw_fd());
        Ok(Self(ManuallyDrop::new(file)))
    }
}

impl<F: AsFd> Deref for Own<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: AsFd> Drop for Own<F> {
    fn drop(&mut self) {
        // Closed under the lock: a fork sees a file that is listed, or none.
        let mut files = lock(&FILES);
        files.remove(&self.0.as_fd().as_raw_fd());
        // SAFETY: nothing uses it any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

fn watch_forks() -> std::io::Result<()> {
    if STAND_IN.get().is_some() {
        return Ok(());
    }
    let stand_in = eventfd(0, EventfdFlags::CLOEXEC)?;
    if STAND_IN.set(stand_in).is_err() {
        return Ok(()); // Another thread was quicker.
    }
    // SAFETY: three functions that are there as long as this library is, which is for ever.
    match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error)),
    }
}

extern "C" fn before() {
    Process::this(); // Made by its first caller; not half made in the child.
    let locks = (remotes::all(), lock(&FILES));
    LOCKS.with_borrow_mut(|held| *held = Some(locks));
}

extern "C" fn after() {
    drop(LOCKS.take());
}

extern "C" fn after_in_child() {
    let Some((remotes, mut files)) = LOCKS.take() else {
        return;
    };
    if let Some(stand_in) = STAND_IN.get() {
        for &file in &*files {
            // SAFETY: two numbers. The second one is a file, of which nothing is heard.
            unsafe { libc::dup3(stand_in.as_raw_fd(), file, libc::O_CLOEXEC) };
        }
    }
    files.clear();
    drop((remotes, files));
}
