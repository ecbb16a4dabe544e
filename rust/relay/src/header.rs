//! The header of an arena's memory: its tickets, and whether the sender waits for returns.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

#[cfg(feature = "loom")]
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::bitmap::Bitmap;
use crate::mapping::Mapping;
use crate::ticket::Ticket;

/// Words of a bitmap with a bit for each ticket.
pub const TICKET_WORDS: usize = 64;
/// Tickets that one arena can have outstanding at once.
pub const TICKETS: usize = 64 * TICKET_WORDS;
/// Edges whose waits are told apart; of more edges, some share a counter.
const EDGES: usize = 32;

#[repr(C, align(64))]
pub struct ArenaHeader {
    /// Waits for any ticket to be taken or returned.
    waiting: Waiters,
    /// Waits for returns on one edge: readers of other edges need not signal.
    waiting_for: [Waiters; EDGES],
    /// The edge of each ticket, written before the ticket is reserved.
    edges: [AtomicU8; TICKETS],
    /// The most bytes for which a payload counts while its reader keeps views of it.
    pub kept: AtomicU64,
    /// Bytes at the start of the data whose pages are present.
    pub present: AtomicU64,
    /// Returned tickets that the sender has not collected yet. If a reader dies between returning a ticket and noting
    /// it here, the sender finds the ticket when it looks at all of them.
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

    /// The waits for any ticket, or for those of the edge with that number.
    pub fn waiters(&self, edge: Option<usize>) -> &Waiters {
        match edge {
            Some(number) => &self.waiting_for[number % EDGES],
            None => &self.waiting,
        }
    }

    /// Sender: notes the edge of a free ticket.
    pub fn assign(&self, ticket: usize, edge: usize) {
        self.edges[ticket].store((edge % EDGES) as u8, Relaxed);
    }

    /// Reader, after it took a ticket to so many bytes: returns whether it must signal the sender.
    pub fn taken(&self, ticket: usize, bytes: u64) -> bool {
        // A larger payload counts for less from now on, which makes room on its edge.
        if bytes > self.kept.load(Relaxed) {
            let edge = usize::from(self.edges[ticket].load(Relaxed));
            return Waiters::any(&[self.waiters(None), self.waiters(Some(edge))]);
        }
        Waiters::any(&[self.waiters(None)])
    }

    /// Reader: returns a ticket, and whether it must signal the sender.
    pub fn give_back(&self, ticket: usize, generation: u32, holder: u32) -> bool {
        // Once returned, the ticket may be reserved for another edge.
        let edge = usize::from(self.edges[ticket].load(Relaxed));
        if !self.tickets[ticket].give_back(generation, holder) {
            return false;
        }
        self.returned.put(ticket as u32);
        Waiters::any(&[self.waiters(None), self.waiters(Some(edge))])
    }
}

/// How many of the sender's threads wait for a ticket to change. Readers signal only if any do: either the reader that
/// changed a ticket sees the waiter, or the waiter, which looks at the tickets after it joined, sees the change.
#[repr(transparent)]
pub struct Waiters(AtomicU32);

impl Waiters {
    #[cfg(all(test, feature = "loom"))]
    pub fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sender: joins. It must look at the tickets only after this.
    pub fn join(&self) {
        self.0.fetch_add(1, SeqCst);
        fence(SeqCst);
    }

    pub fn leave(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    /// Reader, after it changed a ticket: whether any of these waits.
    pub fn any(of: &[&Self]) -> bool {
        fence(SeqCst);
        of.iter().any(|waiters| waiters.0.load(SeqCst) > 0)
    }
}
