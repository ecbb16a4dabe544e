//! Threads that send, read, give back, take back and die at once, for ThreadSanitizer (`make sanitize`). It tells memory
//! apart by address, so readers here use the sender's own mapping. Whatever else ordered the threads would hide a race,
//! so they pass places on without any order.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{Shutdown, shutdown};

use super::{Access, Lease, OpenError, Place, Remote};
use crate::Arena;

const LEN: usize = 1000;
const WORDS: usize = LEN / 8;
const ROUNDS: u64 = 1000;
const KEEP: Duration = Duration::from_secs(60);

/// Where senders leave places for readers: each is one word, moved without any order.
#[derive(Default)]
struct Shelf([AtomicU64; 8]);

impl Shelf {
    /// Leaves a place, instead of one that no reader has taken.
    fn leave(&self, round: u64, place: Place) -> Option<Place> {
        let (offset, ticket) = (place.offset / 64, u64::from(place.ticket));
        let word = offset << 32 | ticket << 20 | u64::from(place.generation);
        assert!((place.offset, place.segment) == (offset * 64, 0) && place.generation < 1 << 20);
        Self::place(self.0[round as usize % self.0.len()].swap(word, Relaxed))
    }

    fn take(&self) -> Option<Place> {
        self.0
            .iter()
            .find_map(|word| Self::place(word.swap(0, Relaxed)))
    }

    fn place(word: u64) -> Option<Place> {
        (word > 0).then_some(Place {
            segment: 0,
            offset: (word >> 32) * 64,
            len: LEN as u64,
            ticket: (word >> 20) as u32 & 0xfff,
            generation: word as u32 & 0xf_ffff,
        })
    }
}

/// A reader on the sender's own mapping.
fn reader(arena: &Arena) -> Arc<Remote> {
    let look = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut remote = Remote::connect(arena.name(), Arc::new(look)).unwrap();
    remote.mapping = arena.mapping();
    Arc::new(remote)
}

/// Takes a place off the shelf and opens it, until all is sent and the shelf is empty.
fn next_lease(reader: &Arc<Remote>, shelf: &Shelf, all_sent: &AtomicBool) -> Option<Lease> {
    loop {
        std::thread::yield_now(); // Otherwise the first reader gets all.
        let was_last = all_sent.load(Relaxed);
        match shelf.take() {
            Some(place) => match reader.clone().open(&place, Access::Sole) {
                Ok(lease) => return Some(lease),
                Err(OpenError::Stale) => {} // Taken back.
                Err(error) => panic!("{error}"),
            },
            None if was_last => return None,
            None => {}
        }
    }
}

fn fill(start: *mut u8, value: u64) {
    // SAFETY: a room is aligned for a `u64`, has `LEN` bytes, and is this thread's alone.
    unsafe { std::slice::from_raw_parts_mut(start.cast::<u64>(), WORDS) }.fill(value);
}

/// Each payload is one number over and over.
fn check(lease: &Lease) {
    assert_eq!(lease.len(), LEN);
    // SAFETY: the lease holds the extent.
    let words = unsafe { std::slice::from_raw_parts(lease.as_ptr().cast::<u64>(), WORDS) };
    assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
}

#[test]
fn each_payload_is_read_or_taken_back_once_whatever_the_others_do() {
    let arena = Arena::new(1 << 20).unwrap();
    let (shelf, all_sent) = (Shelf::default(), AtomicBool::new(false));
    let (arena, shelf, all_sent) = (&arena, &shelf, &all_sent);
    let leave = |round, place| {
        let unread = shelf.leave(round, place);
        std::thread::yield_now(); // Otherwise readers get few places before they are taken back.
        unread.is_some_and(|unread| arena.revoke_place(&unread)) as u64
    };
    let ended = std::thread::scope(|scope| {
        let to_one = scope.spawn(move || {
            let mut revoked = 0;
            for round in 0..ROUNDS {
                let grant = arena.allocate("a", "one", LEN as u64, KEEP).unwrap();
                fill(grant.room.ready(), round);
                revoked += leave(round, grant.publish().place);
            }
            revoked
        });
        let to_two = scope.spawn(move || {
            let mut revoked = 0;
            for round in 0..ROUNDS {
                let held = arena.hold(LEN as u64).unwrap();
                fill(held.room.ready(), !round);
                for edge in ["b", "c"] {
                    let issued = arena.issue(&held, edge, "two", KEEP).unwrap();
                    revoked += leave(round, issued.place);
                }
            }
            revoked
        });
        let revoker = scope.spawn(move || {
            let mut revoked = 0;
            while !all_sent.load(Relaxed) {
                for key in ["one", "two"] {
                    revoked += arena.revoke(key) as u64;
                    std::thread::sleep(Duration::from_micros(5));
                }
            }
            revoked
        });
        let leases = |reader| std::iter::from_fn(move || next_lease(&reader, shelf, all_sent));
        let (give, given) = channel();
        let passes_on = scope.spawn(move || {
            let mut read = 0;
            for lease in leases(reader(arena)) {
                check(&lease);
                give.send(lease).unwrap();
                read += 1;
            }
            read
        });
        let drops = scope.spawn(move || given.iter().for_each(drop::<Lease>));
        let gives_back = scope.spawn(move || {
            let read = leases(reader(arena)).inspect(check);
            read.map(drop).count() as u64
        });
        // Its last leases come back on their own and are reclaimed by the sender, both at once.
        let dies = scope.spawn(move || {
            let lives = || {
                let reader = reader(arena);
                let lease = next_lease(&reader, shelf, all_sent)?;
                shutdown(&*reader.connection.stream, Shutdown::Both).unwrap();
                drop(lease);
                Some(())
            };
            std::iter::from_fn(lives).count() as u64
        });

        let senders = [to_one, to_two].map(|sender| sender.join());
        // The others end, even if a sender panicked.
        all_sent.store(true, Relaxed);
        let ends = [revoker, passes_on, gives_back, dies].map(|thread| thread.join().unwrap());
        drops.join().unwrap();
        let revoked: u64 = senders.map(Result::unwrap).iter().sum();
        revoked + ends.iter().sum::<u64>()
    });
    assert_eq!(ended, 3 * ROUNDS);
    assert_eq!(arena.outstanding(), 0);
    assert!(arena.edges().iter().all(|(_, held, _)| *held == 0));
}
