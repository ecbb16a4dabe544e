//! The header of an arena's memory: tickets, and whether the sender wants to hear of returns.

use std::sync::atomic::Ordering::SeqCst;

#[cfg(feature = "loom")]
use loom::sync::atomic::{AtomicU32, fence};
#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicU32, fence};

use crate::ticket::Ticket;

/// Payloads one arena can have under way at once.
pub const TICKETS: usize = 4095;

#[repr(C, align(64))]
pub struct Control {
    pub waiting: Waiters,
    /// Set while the sender lacks room: readers copy out instead of keeping views.
    pub pressure: AtomicU32,
    pub tickets: [Ticket; TICKETS],
}

/// How many of the sender's threads wait for a ticket to change. Readers signal only then: either the
/// reader that changed a ticket sees the waiter, or the waiter, looking after it joined, the change.
#[repr(transparent)]
pub struct Waiters(AtomicU32);

impl Waiters {
    #[cfg(all(test, feature = "loom"))]
    pub fn nobody() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sender: look at the tickets only after this.
    pub fn join(&self) {
        self.0.fetch_add(1, SeqCst);
        fence(SeqCst);
    }

    pub fn leave(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    /// Reader, after it changed a ticket: whether somebody must be told.
    pub fn any(&self) -> bool {
        fence(SeqCst);
        self.0.load(SeqCst) > 0
    }
}

/// Bytes of the header in the file; data starts here.
pub const CONTROL_LEN: usize = size_of::<Control>().next_multiple_of(1 << 16);
