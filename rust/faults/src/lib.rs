//! Faults at named points of a server's processes, for tests: a process is killed, stopped, held up or refused something
//! at exactly the N-th time that it, or any of them, reaches a point.
//!
//! A [`Board`] is a file that all processes map, Rust and Python alike, so that one schedule drives them all: it arms
//! points, and counts how often each was reached. A process looks at the board that `SGLANG_OMNI_FAULTS` names when it
//! starts ([`switch_on`]). Without that variable a point costs a load and a branch that is not taken.
//!
//! Every point can take `delay`, `hang`, `kill`, `stop`, `fork` and `interrupts`. Where `error` is possible too, the
//! table says what it means there; elsewhere an error fires and changes nothing, as does a site's action that the table
//! does not name.
//!
//! | point | is reached | `error` | the site's own |
//! |---|---|---|---|
//! | `relay.allocate` | before credit for a payload is taken | the edge is full | |
//! | `relay.publish` | when a payload is written and its reader cannot see it yet | | |
//! | `relay.published` | when its reader could take it, and was not sent its place | | |
//! | `relay.open` | before a reader takes a payload's ticket | the sender cannot be reached | |
//! | `relay.connect` | before it connects to a sender that is new to it | the same | |
//! | `relay.serve` | before a sender answers a reader that wants memory; holds up all its readers | a refusal | `drop`: the connection is closed |
//! | `relay.take` | when a reader has taken a ticket, and has no view yet | the payload is given back unread | |
//! | `relay.give_back` | before a ticket is returned | | |
//! | `relay.revoke` | before unread payloads are taken back | | |
//! | `relay.reclaim` | when a reader has ended, before what it held comes back | | |
//! | `relay.reclaimed` | after that | | |
//! | `router.accept` | when a client's connection is accepted | it is closed | |
//! | `router.connect` | before a connection to a worker is opened, but for health checks | it is refused | |
//! | `router.send` | before a client's request is sent on a connection, new or kept | the worker has closed it, nothing is sent | |
//! | `router.head` | when the head of the answer is there | the connection is reset before it | |
//! | `router.body` | before each piece of the answer that was not awaited with its head, and before its end | the connection is reset there | |
//! | `router.tail` | when the answer is over; takes no `delay`, `hang` and `fork` | the worker closes the connection | |
//! | `router.health` | before a worker's health is checked | the check fails | |
//! | `router.client` | before each write to a client | the client has reset its connection | |

mod action;
mod board;
#[cfg(test)]
mod board_tests;
mod fault;
mod signals;

pub use action::Action;
pub use board::{Board, Order, PointRecord};
pub use fault::{Fired, SiteAction, Wait};
pub use signals::{fork, reap, sleep_and_end};

use std::io::Result;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The environment's variable with the path of a board.
pub const VARIABLE: &str = "SGLANG_OMNI_FAULTS";

/// The board of this process, or null. Once it is there it stays mapped.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(null_mut());

/// Has this process look at the board that the environment names, if it names one.
///
/// # Errors
/// One line that names the variable and the path. The process must not go on: it would run without its faults.
pub fn switch_on_from_environment() -> std::result::Result<(), String> {
    let Some(path) = std::env::var_os(VARIABLE) else {
        return Ok(());
    };
    let path = Path::new(&path);
    let opened = Board::open(path).map(|board| switch_on(Arc::new(board)));
    opened.map_err(|error| format!("{VARIABLE}={}: {error}", path.display()))
}

/// Has this process look at a board from now on, instead of another if it had one.
pub fn switch_on(board: Arc<Board>) {
    BOARD.store(Arc::into_raw(board).cast_mut(), Release);
}

/// Ends what [`switch_on`] began. Faults that are under way go on.
pub fn switch_off() {
    BOARD.store(null_mut(), Release);
}

/// True if this process looks at a board.
#[inline(always)]
pub fn are_on() -> bool {
    !BOARD.load(Relaxed).is_null()
}

/// A point that can fail. A fault that only the site can do is returned to it.
#[inline(always)]
pub fn point(name: &str) -> Result<Option<SiteAction>> {
    if are_on() { block(name) } else { Ok(None) }
}

/// A point that cannot fail and whose site does nothing of its own.
#[inline(always)]
pub fn pause(name: &str) {
    if are_on() {
        let _ = block(name);
    }
}

#[cold]
#[inline(never)]
fn block(name: &str) -> Result<Option<SiteAction>> {
    match reach(name) {
        None => Ok(None),
        Some(Fired::Wait(wait)) => {
            wait.block();
            Ok(None)
        }
        Some(Fired::Error(error)) => Err(error),
        Some(Fired::Fork(time)) => fork(time).map(|()| None),
        Some(Fired::Site(action)) => Ok(Some(action)),
    }
}

/// A point whose caller waits, forks and fails in its own way, for code that must not block its thread. Kills, stops and
/// interrupts by itself.
#[cold]
#[inline(never)]
pub fn reach(name: &str) -> Option<Fired> {
    // SAFETY: it is null, or has a count of an `Arc` that is never given back.
    let board = unsafe { BOARD.load(Acquire).as_ref() }?;
    fault::reach(board, name)
}
