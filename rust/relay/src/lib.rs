//! Carries payloads between processes of one host in shared memory.
//!
//! A sender owns an [`Arena`]: an anonymous memory file that processes of the same user fetch over an abstract Unix
//! socket and map once. A payload lies in an extent of the file; a *ticket* in the file's header is one reader's right
//! to that extent. The reader turns its ticket into a [`Lease`] and returns the ticket by dropping the lease; the
//! sender collects returned tickets when it needs room.
//!
//! Nothing has a name in a file system, so nothing is left behind when processes are killed.

use std::io::Write;
#[cfg(not(feature = "tsan"))]
use std::sync::PoisonError;
use std::sync::{Mutex, MutexGuard};

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

#[cfg(not(feature = "tsan"))]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under a lock is complete before anything that can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// ThreadSanitizer sees how `try_lock` orders threads, but not how a wait does, which is compiled into std.
#[cfg(feature = "tsan")]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    use std::sync::TryLockError::{Poisoned, WouldBlock};
    loop {
        match mutex.try_lock() {
            Err(WouldBlock) => std::thread::yield_now(),
            Err(Poisoned(error)) => return error.into_inner(),
            Ok(guard) => return guard,
        }
    }
}

/// Writes to standard error what is wrong in a thread that has no caller to tell.
fn report(what: &str, error: rustix::io::Errno) {
    // Unlike `eprintln!`, which panics where standard error is closed, or a file on a full disk.
    let _ = writeln!(
        std::io::stderr(),
        "sglang-omni relay: {what}: {error}; trying again"
    );
}

#[cfg(all(test, not(any(miri, feature = "loom"))))]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::report;

    /// In a process of its own: the tests' output is captured, which never fails.
    #[test]
    fn a_report_may_have_no_room() {
        const CHILD: &str = "SGLANG_OMNI_TEST_REPORTS";
        if std::env::var_os(CHILD).is_some() {
            report("cannot wait", rustix::io::Errno::NOMEM);
            return;
        }
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::a_report_may_have_no_room", "--nocapture"])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .stderr(full)
            .status();
        assert!(status.unwrap().success());
    }
}
