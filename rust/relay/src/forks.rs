//! Keeps the relay in order across `fork`. A lock that another thread holds at that moment would never be released in
//! the child; a connection that the child inherited would hide from a peer that this process has ended.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rustix::event::{EventfdFlags, eventfd};

use crate::lock;
use crate::process::Process;

/// Files that must end with this process, although it may have children.
static FILES: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());
/// Replaces each of these files in a child, so that their numbers are not reused for other files, which code that still
/// has the number would then close. Set once forks are watched.
static STAND_IN: OnceLock<OwnedFd> = OnceLock::new();

/// Takes a lock and returns its guard.
type Lock = fn() -> Box<dyn Any>;

/// What else is locked while a thread forks: before the files, as everywhere.
static HELD: Mutex<Option<Lock>> = Mutex::new(None);

type Locks = (
    Option<Box<dyn Any>>,
    MutexGuard<'static, Option<Lock>>,
    MutexGuard<'static, BTreeSet<RawFd>>,
);

thread_local! {
    /// Held by a thread while it forks.
    static LOCKS: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

/// A file that forked children do not inherit.
#[derive(Debug)]
pub struct Own<F: AsFd>(ManuallyDrop<F>);

impl<F: AsFd> Own<F> {
    /// Opens a file with `open`, which must not wait for anything: forks wait for it.
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
        // Closed under the lock, so that a fork sees either a listed file or none.
        let mut files = lock(&FILES);
        files.remove(&self.0.as_fd().as_raw_fd());
        // SAFETY: nothing uses it any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Has a lock taken before each fork, and let go of after it, in the child too: always the same, and before it is first
/// locked.
pub fn hold_while_forking(lock_it: Lock) {
    lock(&HELD).get_or_insert(lock_it);
}

fn watch_forks() -> std::io::Result<()> {
    if STAND_IN.get().is_some() {
        return Ok(());
    }
    let stand_in = eventfd(0, EventfdFlags::CLOEXEC)?;
    if STAND_IN.set(stand_in).is_err() {
        return Ok(()); // Another thread was quicker.
    }
    // SAFETY: the three functions stay loaded, because this library is never unloaded.
    match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error)),
    }
}

extern "C" fn before() {
    Process::this(); // The first call initializes it, which must not be half done in the child.
    let held = lock(&HELD);
    let guard = held.map(|lock_it| lock_it());
    let locks = (guard, held, lock(&FILES));
    LOCKS.with_borrow_mut(|held| *held = Some(locks));
}

extern "C" fn after() {
    drop(LOCKS.take());
}

extern "C" fn after_in_child() {
    let Some((guard, held, mut files)) = LOCKS.take() else {
        return;
    };
    if let Some(stand_in) = STAND_IN.get() {
        for &file in &*files {
            // SAFETY: two file numbers. The second file is not read or written in a child.
            unsafe { libc::dup3(stand_in.as_raw_fd(), file, libc::O_CLOEXEC) };
        }
    }
    files.clear();
    drop((guard, held, files));
}
