//! A ticket under every interleaving of its sender, its reader and the thread that notices deaths.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Acquire};
use loom::thread;

use crate::control::Waiters;
use crate::ticket::{Ticket, TicketState, fresh};

const READER: u32 = 7;

/// A ticket and the extent it is the right to. loom fails where a read and a write are not in order.
struct Slot {
    ticket: Ticket,
    extent: UnsafeCell<u32>,
}

impl Slot {
    /// One payload under way, and its generation.
    fn with(value: u32) -> (Arc<Self>, u32) {
        let slot = Self {
            ticket: fresh(),
            extent: UnsafeCell::new(0),
        };
        let generation = slot.write(value);
        (Arc::new(slot), generation)
    }

    /// As `Arena::allocate` and the copy: the extent must be nobody's.
    fn write(&self, value: u32) -> u32 {
        let generation = self.ticket.issue();
        // SAFETY: loom checks that nobody reads meanwhile.
        self.extent.with_mut(|extent| unsafe { *extent = value });
        generation
    }

    /// As a `Lease`, opened and dropped: what was read, where the ticket could be taken.
    fn read(&self, generation: u32) -> Option<u32> {
        if !self.ticket.take(generation, READER) {
            return None;
        }
        // SAFETY: loom checks that nobody writes meanwhile.
        let value = self.extent.with(|extent| unsafe { *extent });
        self.ticket.give_back(generation, READER);
        Some(value)
    }
}

#[test]
fn an_extent_is_written_again_only_after_its_reader() {
    loom::model(|| {
        let (slot, first) = Slot::with(1);
        let reading = thread::spawn({
            let slot = slot.clone();
            move || slot.read(first)
        });
        if slot.ticket.collect(first) {
            let second = slot.write(2);
            assert_eq!(slot.ticket.state(first), TicketState::Free);
            assert_eq!(slot.ticket.state(second), TicketState::Ready);
        }
        assert_eq!(reading.join().unwrap(), Some(1));
    });
}

#[test]
fn a_payload_is_read_or_taken_back_and_never_both() {
    loom::model(|| {
        let (slot, first) = Slot::with(1);
        let reading = thread::spawn({
            let slot = slot.clone();
            move || slot.read(first)
        });
        let revoked = slot.ticket.revoke(first);
        if revoked {
            // Its next user, whom a late reader of the first must not disturb.
            let second = slot.write(2);
            assert_ne!(first, second);
            assert_eq!(reading.join().unwrap(), None);
            assert_eq!(slot.ticket.state(second), TicketState::Ready);
        } else {
            assert_eq!(reading.join().unwrap(), Some(1));
            assert!(slot.ticket.collect(first));
        }
    });
}

#[test]
fn of_two_readers_one_gets_it() {
    loom::model(|| {
        let (slot, first) = Slot::with(1);
        let other = thread::spawn({
            let slot = slot.clone();
            move || slot.ticket.take(first, READER + 1)
        });
        let mine = slot.ticket.take(first, READER);
        assert!(mine ^ other.join().unwrap());
        assert!(!slot.ticket.revoke(first));
        assert!(!slot.ticket.collect(first));
    });
}

#[test]
fn a_dead_readers_ticket_comes_back_once() {
    loom::model(|| {
        let (slot, first) = Slot::with(1);
        assert!(slot.ticket.take(first, READER));
        // The reader's last act may be seen before or after its death is.
        let returns = thread::spawn({
            let slot = slot.clone();
            move || slot.ticket.give_back(first, READER)
        });
        let reclaimed = slot.ticket.give_back(first, READER);
        let collected = slot.ticket.collect(first);
        let second = collected.then(|| slot.write(2));
        let returned = returns.join().unwrap();
        assert!(reclaimed ^ returned);
        match second {
            Some(second) => assert_eq!(slot.ticket.state(second), TicketState::Ready),
            None => assert!(slot.ticket.collect(first)),
        }
    });
}

#[test]
fn whoever_waits_for_a_return_sees_it_or_is_told() {
    loom::model(|| {
        let (slot, first) = Slot::with(1);
        assert!(slot.ticket.take(first, READER));
        let waiters = Arc::new(Waiters::nobody());
        let told = thread::spawn({
            let (slot, waiters) = (slot.clone(), waiters.clone());
            move || slot.ticket.give_back(first, READER) && waiters.any()
        });
        waiters.join();
        let seen = slot.ticket.collect(first);
        assert!(told.join().unwrap() || seen);
        waiters.leave();
    });
}

#[test]
fn two_collectors_free_it_once() {
    loom::model(|| {
        let (slot, first) = Slot::with(1);
        assert_eq!(slot.read(first), Some(1));
        let claimed = Arc::new(AtomicBool::new(false));
        let claim = move |slot: &Slot, claimed: &AtomicBool| {
            if slot.ticket.collect(first) {
                assert!(!claimed.swap(true, AcqRel), "collected twice");
            }
        };
        let other = thread::spawn({
            let (slot, claimed) = (slot.clone(), claimed.clone());
            move || claim(&slot, &claimed)
        });
        claim(&slot, &claimed);
        other.join().unwrap();
        assert!(claimed.load(Acquire));
    });
}
