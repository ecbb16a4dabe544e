//! A ticket: one reader's right to one extent, in one atomic word shared by two processes.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

#[cfg(feature = "loom")]
use loom::sync::atomic::AtomicU64;
#[cfg(not(feature = "loom"))]
use std::sync::atomic::AtomicU64;

/// The state of a ticket. Only the sender reserves, publishes, revokes and collects; only a reader takes and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TicketState {
    /// Unused: the sender may reserve it.
    Free = 0,
    /// Published, not yet taken by its reader.
    Ready = 1,
    /// A reader has views of the extent.
    Held = 2,
    /// The reader has returned it; the sender may collect it.
    Returned = 3,
    /// The sender is writing the payload; no reader can take it.
    Reserved = 4,
}

/// The largest number that a reader can have.
pub const MAX_HOLDER: u32 = (1 << 24) - 1;

/// Word: generation (32 bits) | holder (24) | state (8). A stale generation never matches.
#[repr(C, align(64))]
pub struct Ticket {
    word: AtomicU64,
}

const fn word(generation: u32, holder: u32, state: TicketState) -> u64 {
    (generation as u64) << 32 | (holder as u64) << 8 | state as u64
}

/// The word of the same generation, free.
const fn freed(now: u64) -> u64 {
    word((now >> 32) as u32, 0, TicketState::Free)
}

impl Ticket {
    /// Sender: takes a free ticket and returns its generation.
    pub fn reserve(&self) -> u32 {
        let generation = ((self.word.load(Relaxed) >> 32) as u32).wrapping_add(1);
        self.word
            .store(word(generation, 0, TicketState::Reserved), Release);
        generation
    }

    /// Sender: makes a reserved ticket ready; its reader sees everything that was written before. Returns false if the
    /// ticket was taken back meanwhile.
    pub fn publish(&self, generation: u32) -> bool {
        self.swap(
            word(generation, 0, TicketState::Reserved),
            word(generation, 0, TicketState::Ready),
        )
    }

    /// Sender: frees a reserved ticket. Returns false if it was taken back meanwhile.
    pub fn withdraw(&self, generation: u32) -> bool {
        let reserved = word(generation, 0, TicketState::Reserved);
        self.swap(reserved, freed(reserved))
    }

    /// Sender: the state of one generation of this ticket; `Free` if the ticket has another generation by now.
    pub fn state(&self, generation: u32) -> TicketState {
        let now = self.word.load(Acquire);
        if (now >> 32) as u32 != generation {
            return TicketState::Free;
        }
        match now as u8 {
            1 => TicketState::Ready,
            2 => TicketState::Held,
            3 => TicketState::Returned,
            4 => TicketState::Reserved,
            _ => TicketState::Free,
        }
    }

    /// Sender: the number of the peer that holds it now.
    pub fn holder(&self) -> Option<u32> {
        let now = self.word.load(Acquire);
        (now as u8 == TicketState::Held as u8).then_some((now >> 8) as u32 & 0xff_ffff)
    }

    /// Sender: takes back a ticket that is reserved or ready. Returns false if it is neither, for example because a
    /// reader was quicker.
    pub fn revoke(&self) -> bool {
        let mut now = self.word.load(Acquire);
        while [TicketState::Reserved as u8, TicketState::Ready as u8].contains(&(now as u8)) {
            // If it was published meanwhile, it is still unread.
            match self.word.compare_exchange(now, freed(now), AcqRel, Acquire) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
        false
    }

    /// Sender: frees a returned ticket. Returns false if it is not returned.
    pub fn collect(&self) -> bool {
        let now = self.word.load(Acquire);
        now as u8 == TicketState::Returned as u8 && self.swap(now, freed(now))
    }

    /// Sender: returns the ticket for a reader that died. Returns false if that reader does not hold it.
    pub fn reclaim(&self, holder: u32) -> bool {
        let now = self.word.load(Acquire);
        let generation = (now >> 32) as u32;
        now == word(generation, holder, TicketState::Held) && self.give_back(generation, holder)
    }

    /// Reader: turns a ready ticket of this generation into a held one. Returns false if it is stale.
    pub fn take(&self, generation: u32, holder: u32) -> bool {
        self.swap(
            word(generation, 0, TicketState::Ready),
            word(generation, holder, TicketState::Held),
        )
    }

    /// Reader: returns a held ticket.
    pub fn give_back(&self, generation: u32, holder: u32) -> bool {
        self.swap(
            word(generation, holder, TicketState::Held),
            word(generation, holder, TicketState::Returned),
        )
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.word
            .compare_exchange(from, to, AcqRel, Acquire)
            .is_ok()
    }
}

#[cfg(test)]
pub fn fresh() -> Ticket {
    Ticket {
        word: AtomicU64::new(0),
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn issue(ticket: &Ticket) -> u32 {
        let generation = ticket.reserve();
        assert!(ticket.publish(generation));
        generation
    }

    #[test]
    fn a_reserved_ticket_cannot_be_taken() {
        let ticket = fresh();
        let generation = ticket.reserve();
        assert!(!ticket.take(generation, 7));
        assert!(ticket.publish(generation));
        assert!(!ticket.withdraw(generation));
        assert!(ticket.take(generation, 7));
    }

    #[test]
    fn a_reserved_ticket_is_given_up_once() {
        let ticket = fresh();
        let first = ticket.reserve();
        assert!(ticket.withdraw(first));
        let second = ticket.reserve();
        assert!(!ticket.withdraw(first));
        assert!(ticket.revoke());
        assert!(!ticket.withdraw(second));
        assert!(!ticket.publish(second));
        assert_eq!(ticket.state(second), TicketState::Free);
    }

    #[test]
    fn one_round() {
        let ticket = fresh();
        let generation = issue(&ticket);
        assert!(ticket.take(generation, 7));
        assert_eq!(ticket.holder(), Some(7));
        assert!(!ticket.collect());
        assert!(ticket.give_back(generation, 7));
        assert!(ticket.collect());
        assert_eq!(ticket.state(generation), TicketState::Free);
    }

    #[test]
    fn a_stale_generation_changes_nothing() {
        let ticket = fresh();
        let old = issue(&ticket);
        assert!(ticket.revoke());
        let new = issue(&ticket);
        assert!(!ticket.take(old, 1));
        assert!(ticket.take(new, 2));
        assert!(!ticket.give_back(old, 2));
        assert!(!ticket.give_back(new, 1));
        assert_eq!(ticket.state(new), TicketState::Held);
    }

    #[test]
    fn a_ticket_is_taken_once() {
        let ticket = fresh();
        let generation = issue(&ticket);
        assert!(ticket.take(generation, 1));
        assert!(!ticket.take(generation, 1));
        assert!(!ticket.revoke());
    }
}
