//! The header of an arena's memory: tickets, and whether the sender wants to hear of returns.

use std::sync::atomic::Ordering::SeqCst;

#[cfg(feature = "loom")]
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::bitmap::Bitmap;
use crate::mapping::Mapping;
use crate::ticket::Ticket;

/// Tickets are numbered by the bits of this many words.
pub const TICKET_WORDS: usize = 64;
/// Tickets one arena can have under way at once.
pub const TICKETS: usize = 64 * TICKET_WORDS;

#[repr(C, align(64))]
pub struct Control {
    pub waiting: Waiters,
    /// Set while the sender lacks room: readers copy out instead of keeping views.
    pub pressure: AtomicU32,
    /// Bytes at the start of the data whose pages are there.
    pub present: AtomicU64,
    /// Tickets that came back and that the sender has not collected yet. A reader that dies between
    /// returning a ticket and noting it here is found when the sender looks at them all.
    pub returned: Bitmap<TICKET_WORDS>,
    pub tickets: [Ticket; TICKETS],
}

impl Control {
    /// Bytes of the header in the file; data starts here.
    pub const LEN: usize = size_of::<Control>().next_multiple_of(1 << 16);

    /// The header of a mapped arena.
    pub fn of(mapping: &Mapping) -> &Self {
        assert!(mapping.len() >= Self::LEN, "checked when it was mapped");
        // SAFETY: the mapping is page-aligned, long enough and outlives the reference, and everything
        // in a Control is atomic and valid for every bit pattern.
        unsafe { &*mapping.start().cast::<Control>() }
    }

    /// Reader: returns a ticket, and tells whether the sender must be told.
    pub fn give_back(&self, ticket: usize, generation: u32, holder: u32) -> bool {
        if !self.tickets[ticket].give_back(generation, holder) {
            return false;
        }
        self.returned.put(ticket as u32);
        self.waiting.any()
    }
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
