//! Carries payloads between processes of one host in shared memory.
//!
//! A sender owns an [`Arena`]: an anonymous memory file that processes of the same user fetch over an abstract Unix
//! socket and map once. A payload lies in an extent of the file; a *ticket* in the file's header is one reader's right
//! to that extent. The reader turns its ticket into a [`Lease`] and returns the ticket by dropping the lease; the
//! sender collects returned tickets when it needs room.
//!
//! Nothing has a name in a file system, so nothing is left behind when processes are killed.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod arena;
#[cfg(all(test, not(any(miri, feature = "loom"))))]
mod arena_tests;
mod bitmap;
mod checksum;
mod connection;
mod credentials;
mod extents;
mod forks;
mod header;
mod ledger;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
mod mapping;
mod memory;
mod pages;
mod peer;
mod private_view;
mod process;
mod records;
mod remotes;
mod segments;
mod server;
mod space;
mod ticket;
mod write_tracker;

pub use arena::{AllocateError, Announcement, Arena, FanoutRoom, Full, Grant, OutstandingPayload};
pub use checksum::checksum;
pub use extents::{Extent, Extents};
pub use ledger::{Edge, Ledger};
pub use mapping::Mapping;
pub use memory::Room;
pub use peer::{Access, Lease, OpenError};
pub use remotes::{open, try_open};
pub use segments::Place;
pub use ticket::TicketState;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under a lock is complete before anything that can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to standard error what is wrong in a thread that has no caller to tell.
fn report(what: &str, error: rustix::io::Errno) {
    eprintln!("sglang-omni relay: {what}: {error}; trying again");
}
