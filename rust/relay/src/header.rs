//! The header of an arena's memory: tickets, and whether the sender wants to hear of returns.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

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
/// Edges that are told apart by who waits for them; of more, some share.
const EDGES: usize = 32;

#[repr(C, align(64))]
pub struct ArenaHeader {
    /// Who waits for any ticket to be taken or returned.
    waiting: Waiters,
    /// Who waits for returns on one edge: readers of the others need not signal.
    waiting_for: [Waiters; EDGES],
    /// The edge of each ticket, written before it is issued.
    edges: [AtomicU8; TICKETS],
    /// What a payload that its reader keeps views of counts for at most.
    pub kept: AtomicU64,
    /// Bytes at the start of the data whose pages are there.
    pub present: AtomicU64,
    /// Tickets that came back and that the sender has not collected yet. A reader that dies between
    /// returning a ticket and noting it here is found when the sender looks at them all.
    pub returned: Bitmap<TICKET_WORDS>,
    pub tickets: [Ticket; TICKETS],
}

impl ArenaHeader {
    /// Bytes of the header in the file; data starts here.
    pub const LEN: usize = size_of::<ArenaHeader>().next_multiple_of(1 << 16);

    /// The header of a mapped arena.
    pub fn of(mapping: &Mapping) -> &Self {
        assert!(mapping.len() >= Self::LEN, "checked when it was mapped");
        // SAFETY: the mapping is page-aligned, long enough and outlives the reference, and everything
        // in the header is atomic and valid for every bit pattern.
        unsafe { &*mapping.start().cast::<ArenaHeader>() }
    }

    /// The waiters for any edge, or for that of a number.
    pub fn waiters(&self, edge: Option<usize>) -> &Waiters {
        match edge {
            Some(number) => &self.waiting_for[number % EDGES],
            None => &self.waiting,
        }
    }

    /// Sender: a free ticket is for the edge of that number.
    pub fn assign(&self, ticket: usize, edge: usize) {
        self.edges[ticket].store((edge % EDGES) as u8, Relaxed);
    }

    /// Reader, after it took a ticket to that many bytes: whether the sender must be told.
    pub fn taken(&self, ticket: usize, bytes: u64) -> bool {
        // Who waits for room on the edge gets some where the payload counts for less from now on.
        if bytes > self.kept.load(Relaxed) {
            let edge = usize::from(self.edges[ticket].load(Relaxed));
            return Waiters::any(&[self.waiters(None), self.waiters(Some(edge))]);
        }
        Waiters::any(&[self.waiters(None)])
    }

    /// Reader: returns a ticket, and tells whether the sender must be told.
    pub fn give_back(&self, ticket: usize, generation: u32, holder: u32) -> bool {
        // Once returned, the ticket may be issued for another edge.
        let edge = usize::from(self.edges[ticket].load(Relaxed));
        if !self.tickets[ticket].give_back(generation, holder) {
            return false;
        }
        self.returned.put(ticket as u32);
        Waiters::any(&[self.waiters(None), self.waiters(Some(edge))])
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

    /// Reader, after it changed a ticket: whether one of these must be told.
    pub fn any(of: &[&Self]) -> bool {
        fence(SeqCst);
        of.iter().any(|waiters| waiters.0.load(SeqCst) > 0)
    }
}
