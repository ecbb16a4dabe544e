//! Everything that threads and processes share without a lock, under every interleaving: a ticket between its sender,
//! its reader and the thread that notices deaths; the slots of one size; an edge's credit.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Acquire};
use loom::thread;

use crate::bitmap::Bitmap;
use crate::header::Waiters;
use crate::ledger::Edge;
use crate::ticket::{Ticket, TicketState, fresh};

const READER: u32 = 7;

/// A ticket and its extent. loom fails if a read and a write of the extent are not ordered.
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

    /// Does what `Arena::allocate`, the copy and `Grant::publish` do. The extent must be free.
    fn write(&self, value: u32) -> u32 {
        let generation = self.ticket.reserve();
        self.fill(value);
        assert!(self.ticket.publish(generation));
        generation
    }

    fn fill(&self, value: u32) {
        // SAFETY: loom checks that no thread reads meanwhile.
        self.extent.with_mut(|extent| unsafe { *extent = value });
    }

    /// Does what opening and dropping a `Lease` does. Returns the value if the ticket could be taken.
    fn read(&self, generation: u32) -> Option<u32> {
        if !self.ticket.take(generation, READER) {
            return None;
        }
        // SAFETY: loom checks that no thread writes meanwhile.
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
        if slot.ticket.collect() {
            let second = slot.write(2);
            assert_eq!(slot.ticket.state(first), TicketState::Free);
            assert_eq!(slot.ticket.state(second), TicketState::Ready);
        }
        assert_eq!(reading.join().unwrap(), Some(1));
    });
}

#[test]
fn a_reader_that_is_there_before_the_payload_gets_all_of_it_or_nothing() {
    loom::model(|| {
        let slot = Arc::new(Slot {
            ticket: fresh(),
            extent: UnsafeCell::new(0),
        });
        let reading = thread::spawn({
            let slot = slot.clone();
            // It guesses the next generation; no message orders its read after the write.
            move || slot.read(1)
        });
        assert_eq!(slot.write(5), 1);
        match reading.join().unwrap() {
            Some(value) => assert_eq!(value, 5),
            None => assert_eq!(slot.read(1), Some(5)),
        }
    });
}

#[test]
fn a_reservation_is_published_or_taken_back_and_never_both() {
    loom::model(|| {
        let slot = Arc::new(Slot {
            ticket: fresh(),
            extent: UnsafeCell::new(0),
        });
        let generation = slot.ticket.reserve();
        let revoking = thread::spawn({
            let slot = slot.clone();
            move || slot.ticket.revoke()
        });
        slot.fill(1);
        slot.ticket.publish(generation);
        // Revoked before or after that, it ends up free and no reader can take it.
        assert!(revoking.join().unwrap());
        assert_eq!(slot.ticket.state(generation), TicketState::Free);
        assert!(!slot.ticket.take(generation, READER));
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
        let revoked = slot.ticket.revoke();
        if revoked {
            // A late reader of the first payload must not disturb the next one.
            let second = slot.write(2);
            assert_ne!(first, second);
            assert_eq!(reading.join().unwrap(), None);
            assert_eq!(slot.ticket.state(second), TicketState::Ready);
        } else {
            assert_eq!(reading.join().unwrap(), Some(1));
            assert!(slot.ticket.collect());
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
        assert!(!slot.ticket.revoke());
        assert!(!slot.ticket.collect());
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
        let reclaimed = slot.ticket.reclaim(READER);
        let collected = slot.ticket.collect();
        let second = collected.then(|| slot.write(2));
        let returned = returns.join().unwrap();
        assert!(reclaimed ^ returned);
        match second {
            Some(second) => assert_eq!(slot.ticket.state(second), TicketState::Ready),
            None => assert!(slot.ticket.collect()),
        }
    });
}

#[test]
fn a_waiter_sees_a_return_or_is_told_of_it() {
    loom::model(|| {
        let (slot, first) = Slot::with(1);
        assert!(slot.ticket.take(first, READER));
        let waiters = Arc::new(Waiters::none());
        let told = thread::spawn({
            let (slot, waiters) = (slot.clone(), waiters.clone());
            move || slot.ticket.give_back(first, READER) && Waiters::any(&[&waiters])
        });
        waiters.join();
        let seen = slot.ticket.collect();
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
            if slot.ticket.collect() {
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

/// Slots of one size, as in a `Memory`.
struct Slots {
    free: Bitmap<1>,
    content: [UnsafeCell<u32>; 2],
}

impl Slots {
    fn all_free() -> Arc<Self> {
        let slots = Self {
            free: Bitmap::empty(),
            content: std::array::from_fn(|_| UnsafeCell::new(0)),
        };
        slots.free.put(0);
        slots.free.put(1);
        Arc::new(slots)
    }

    /// Takes a slot, writes it, puts it back: loom fails if another thread has it too.
    fn use_one(&self, value: u32) -> bool {
        let Some(number) = self.free.take() else {
            return false;
        };
        // SAFETY: loom checks that no other thread has the slot.
        self.content[number as usize].with_mut(|content| unsafe { *content = value });
        self.free.put(number);
        true
    }
}

#[test]
fn a_slot_has_one_user_and_is_not_lost() {
    loom::model(|| {
        let slots = Slots::all_free();
        let other = thread::spawn({
            let slots = slots.clone();
            // Twice, so that a slot comes back while the other thread is about to take it.
            move || slots.use_one(1) && slots.use_one(2)
        });
        assert!(slots.use_one(3));
        assert!(other.join().unwrap());
        assert_eq!([slots.free.take(), slots.free.take()], [Some(0), Some(1)]);
        assert_eq!(slots.free.take(), None);
    });
}

#[test]
fn three_threads_share_two_slots() {
    loom::model(|| {
        let slots = Slots::all_free();
        let others: [_; 2] = std::array::from_fn(|index| {
            let slots = slots.clone();
            thread::spawn(move || slots.use_one(index as u32))
        });
        slots.use_one(9);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(slots.free.len(), 2);
    });
}

#[test]
fn every_return_is_collected_by_the_notes_alone() {
    loom::model(|| {
        let slots: Arc<[(Arc<Slot>, u32); 2]> = Arc::new(std::array::from_fn(|_| Slot::with(1)));
        let returned = Arc::new(Bitmap::<1>::empty());
        let readers: [_; 2] = std::array::from_fn(|number| {
            let (slots, returned) = (slots.clone(), returned.clone());
            thread::spawn(move || {
                let (slot, generation) = &slots[number];
                assert_eq!(slot.read(*generation), Some(1));
                returned.put(number as u32);
            })
        });
        let mut collected = 0;
        let mut collect = || {
            returned.drain(|number| {
                let (slot, _) = &slots[number as usize];
                assert!(slot.ticket.collect(), "noted before it was returned");
                slot.write(2);
                collected += 1;
            });
        };
        collect();
        for reader in readers {
            reader.join().unwrap();
        }
        collect();
        assert_eq!(collected, 2);
    });
}

#[test]
fn an_edge_grants_no_more_than_its_rule_allows_and_loses_nothing() {
    loom::model(|| {
        // Of three amounts of 3 the rule allows two: at 3, half the limit, any amount; at 6 none.
        let edge = Arc::new(Edge::new(0, 6));
        let others: [_; 2] = std::array::from_fn(|_| {
            let edge = edge.clone();
            thread::spawn(move || edge.take(3).is_some())
        });
        let mine = edge.take(3).is_some();
        let granted = u64::from(mine)
            + others
                .map(|o| u64::from(o.join().unwrap()))
                .iter()
                .sum::<u64>();
        assert_eq!(granted, 2);
        assert_eq!(edge.held(), 6);
    });
}

#[test]
fn credit_given_back_while_it_is_taken_is_not_lost() {
    loom::model(|| {
        let edge = Arc::new(Edge::new(0, 4));
        assert_eq!(edge.take(3), Some(3));
        let gives = thread::spawn({
            let edge = edge.clone();
            move || assert!(edge.give_back(3))
        });
        // Refused before the return, granted after it; the sum is right either way.
        let taken = edge.take(2).map_or(0, |_| 2);
        gives.join().unwrap();
        assert_eq!(edge.held(), taken);
        assert!(!edge.give_back(taken + 1));
    });
}
