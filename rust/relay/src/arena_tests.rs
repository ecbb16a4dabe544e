//! Sender and reader in one process; processes that die are tested from Python.

use std::time::Duration;

use crate::{Access, AllocateError, Arena, Grant, Lease, OpenError, Place, TicketState, remotes};

const KEEP: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn open(name: &str, place: &Place) -> Result<Lease, OpenError> {
    crate::open(name, place, Access::Sole)
}

fn put(arena: &Arena, edge: &str, key: &str, bytes: &[u8]) -> Place {
    let grant = arena.allocate(edge, key, bytes.len() as u64, KEEP).unwrap();
    // SAFETY: the grant is ours and that long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), grant.room.ready(), bytes.len()) };
    grant.publish().place
}

fn bytes_held(arena: &Arena, edge: &str) -> u64 {
    let edges = arena.edges();
    edges.iter().find(|(name, ..)| name == edge).unwrap().1
}

fn read(arena: &Arena, place: &Place) -> Vec<u8> {
    let lease = open(arena.name(), place).unwrap();
    // SAFETY: the lease holds the extent.
    unsafe { std::slice::from_raw_parts(lease.as_ptr(), lease.len()) }.to_vec()
}

#[test]
fn a_payload_is_read_once_and_its_room_returns() {
    let arena = Arena::new(MIB).unwrap();
    let place = put(&arena, "e", "k", &[5; 1000]);
    assert_eq!(arena.state(&place), TicketState::Ready);
    assert_eq!(read(&arena, &place), [5; 1000]);
    assert!(matches!(open(arena.name(), &place), Err(OpenError::Stale)));
    assert_eq!(arena.outstanding(), 0);
    assert_eq!(arena.edges(), [("e".to_owned(), 0, 0)]);
}

#[test]
fn what_several_targets_get_is_written_once_and_lives_until_the_last_let_go() {
    let arena = Arena::new(MIB).unwrap();
    let held = arena.hold(1000).unwrap();
    // SAFETY: the room is ours and that long.
    unsafe { held.room.ready().write_bytes(7, 1000) };
    let places = ["a", "b", "c"].map(|edge| arena.issue(&held, edge, edge, KEEP).unwrap().place);
    let offsets = places.map(|place| place.offset);
    assert_eq!(offsets, [offsets[0]; 3]);
    assert_eq!(arena.written(), 1000);
    drop(held);

    let first = open(arena.name(), &places[0]).unwrap();
    assert_eq!(arena.revoke("b"), 1);
    assert_eq!(read(&arena, &places[2]), [7; 1000]);
    // Only the first reader still has it: the room is not reused, and edge a's credit is not back.
    assert_eq!(arena.outstanding(), 1);
    let held_by: Vec<u64> = ["a", "b", "c"].map(|edge| bytes_held(&arena, edge)).into();
    assert_eq!(held_by, [1000, 0, 0]);
    assert_ne!(put(&arena, "d", "k", &[1; 1000]).offset, offsets[0]);
    // SAFETY: the lease holds the extent.
    assert_eq!(unsafe { *first.as_ptr() }, 7);
    drop(first);
    assert_eq!(arena.outstanding(), 1);
    assert_eq!(put(&arena, "a", "k", &[1; 1000]).offset, offsets[0]);
}

#[test]
fn a_target_without_credit_gets_what_is_held_when_it_has_some() {
    let arena = Arena::new(MIB).unwrap();
    let stalled = put(&arena, "stalled", "before", &[1; 600_000]);
    let held = arena.hold(600_000).unwrap();
    // SAFETY: the room is ours and that long.
    unsafe { held.room.ready().write_bytes(9, 600_000) };
    let going = arena.issue(&held, "going", "k", KEEP).unwrap().place;
    assert!(matches!(
        arena.issue(&held, "stalled", "k", KEEP),
        Err(AllocateError::Full(_))
    ));
    assert_eq!(read(&arena, &going), [9; 600_000]);
    read(&arena, &stalled);
    let late = arena.issue(&held, "stalled", "k", KEEP).unwrap().place;
    drop(held);
    assert_eq!(read(&arena, &late), [9; 600_000]);
    assert_eq!(arena.outstanding(), 0);
    assert!(arena.edges().iter().all(|(_, held, _)| *held == 0));
}

#[test]
fn what_is_held_for_slow_targets_is_bounded() {
    let arena = Arena::new(MIB).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| arena.hold(300_000).ok()).collect();
    assert_eq!(held.len(), 3);
    put(&arena, "e", "k", &[1; 300_000]);
    drop(held);
    assert!(arena.hold(300_000).is_ok());
}

#[test]
fn a_room_that_is_being_written_is_not_given_away_when_its_payload_is_taken_back() {
    let arena = Arena::new(MIB).unwrap();
    let grant = arena.allocate("e", "gone", 1000, KEEP).unwrap();
    let offset = grant.room.offset;
    assert_eq!(arena.revoke("gone"), 1);
    assert_ne!(put(&arena, "e", "k", &[1; 1000]).offset, offset);
    // A message that announces it all the same announces nothing.
    let place = grant.publish().place;
    assert!(matches!(open(arena.name(), &place), Err(OpenError::Stale)));
}

#[test]
fn what_is_not_published_cannot_be_read_and_takes_back_itself_alone() {
    let arena = Arena::new(MIB).unwrap();
    let [same_edge, other_edge] = ["e", "f"].map(|edge| put(&arena, edge, "k", &[1; 1000]));
    let grant = arena.allocate("e", "k", 1000, KEEP).unwrap();
    // The place as a reader would guess it.
    let guessed = Place {
        offset: grant.room.offset,
        ticket: 2,
        generation: 1,
        ..same_edge
    };
    assert_eq!(arena.state(&guessed), TicketState::Reserved);
    assert!(matches!(
        open(arena.name(), &guessed),
        Err(OpenError::Stale)
    ));
    assert_eq!(bytes_held(&arena, "e"), 2000);
    drop(grant);
    assert_eq!(bytes_held(&arena, "e"), 1000);
    assert_eq!(arena.outstanding(), 2);
    for place in [same_edge, other_edge] {
        assert_eq!(read(&arena, &place), [1; 1000]);
    }
}

#[test]
fn one_payload_is_taken_back_beside_others_of_its_key() {
    let arena = Arena::new(MIB).unwrap();
    let [first, second, third] = ["e", "e", "f"].map(|edge| put(&arena, edge, "k", &[1; 1000]));
    assert!(arena.revoke_place(&second));
    assert!(!arena.revoke_place(&second));
    let next = put(&arena, "e", "k", &[2; 1000]);
    assert_eq!(next.ticket, second.ticket);
    assert!(!arena.revoke_place(&second));
    let held = open(arena.name(), &first).unwrap();
    assert!(!arena.revoke_place(&first));
    drop(held);
    assert_eq!(read(&arena, &third), [1; 1000]);
    assert_eq!(read(&arena, &next), [2; 1000]);
}

#[test]
fn readers_of_one_memory_do_not_see_what_another_writes_there() {
    // In the arena, and in a segment of its own.
    for size in [200_000, 3 * MIB as usize] {
        let arena = Arena::new(MIB).unwrap();
        let held = arena.hold(size as u64).unwrap();
        // SAFETY: the room is ours and that long.
        unsafe { held.room.ready().write_bytes(7, size) };
        let leases = ["a", "b"].map(|edge| {
            let place = arena.issue(&held, edge, "k", KEEP).unwrap().place;
            crate::open(arena.name(), &place, Access::CopyOnWrite).unwrap()
        });
        for (lease, value) in leases.iter().zip(1..) {
            assert_eq!(lease.len(), size);
            // SAFETY: this lease's own bytes.
            unsafe { lease.as_ptr().add(size / 2).write_bytes(value, 1000) };
        }
        for (lease, value) in leases.iter().zip(1..) {
            // SAFETY: the lease holds them.
            let bytes = unsafe { std::slice::from_raw_parts(lease.as_ptr(), size) };
            let (start, end) = (size / 2, size / 2 + 1000);
            assert!(
                bytes[..start]
                    .iter()
                    .chain(&bytes[end..])
                    .all(|&byte| byte == 7)
            );
            assert!(bytes[start..end].iter().all(|&byte| byte == value));
        }
        drop(leases);
        drop(held);
        // None of these writes is left where the next payload lies.
        let place = put(&arena, "a", "l", &vec![9; size]);
        assert_eq!(read(&arena, &place), vec![9; size]);
    }
}

#[test]
fn small_payloads_for_a_stalled_target_leave_tickets_for_the_others() {
    let arena = Arena::new(1 << 30).unwrap();
    let under_way = |edge: &str| {
        (0..10_000)
            .take_while(|_| {
                arena
                    .allocate(edge, "k", 10, KEEP)
                    .map(Grant::publish)
                    .is_ok()
            })
            .count()
    };
    assert_eq!(under_way("stalled"), 512);
    assert_eq!(under_way("other"), 512);
}

/// How often readers have signalled since the last call.
fn signals(arena: &Arena) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(arena.event(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

#[test]
fn a_wait_for_room_on_an_edge_is_told_of_that_edge_alone() {
    let arena = Arena::new(MIB).unwrap();
    let signals = || signals(&arena);
    let [slow, free] = ["slow", "free"].map(|edge| put(&arena, edge, "k", &[1; 10]));
    arena.wait_begin(Some("slow"));
    read(&arena, &free);
    assert_eq!(signals(), 0);
    read(&arena, &slow);
    assert_eq!(signals(), 1, "the return, not that it was taken");
    arena.wait_end(Some("slow"));

    let places = ["slow", "free"].map(|edge| put(&arena, edge, "k", &[1; 10]));
    arena.wait_begin(None);
    let leases = places.map(|place| open(arena.name(), &place).unwrap());
    assert_eq!(signals(), 2);
    drop(leases);
    assert_eq!(signals(), 2);
    arena.wait_end(None);
    read(&arena, &put(&arena, "slow", "k", &[1; 10]));
    assert_eq!(signals(), 0);
}

#[test]
fn a_large_payload_alone_on_its_edge_is_lent_and_does_not_stop_it() {
    let arena = Arena::new(10 * MIB).unwrap();
    let allocate = |key| arena.allocate("e", key, 9 * MIB, KEEP).map(Grant::publish);
    let first = allocate("a").unwrap();
    assert!(first.lend);
    assert!(allocate("too early: a is unread").is_err());
    let kept = open(arena.name(), &first.place).unwrap();
    let second = allocate("b").unwrap();
    assert!(!second.lend);
    assert!(allocate("c").is_err());
    drop(open(arena.name(), &second.place).unwrap());
    allocate("c").unwrap();
    assert_eq!(arena.revoke("c"), 1);
    drop(kept);
    assert_eq!(arena.outstanding(), 0);
    assert_eq!(bytes_held(&arena, "e"), 0);
}

#[test]
fn a_wait_on_an_edge_is_told_when_a_large_payload_is_taken() {
    for size in [MIB - 1, 3 * MIB] {
        let arena = Arena::new(MIB).unwrap();
        let first = arena.allocate("e", "k", size, KEEP).unwrap().publish();
        assert!(arena.allocate("e", "l", size, KEEP).is_err());
        arena.wait_begin(Some("e"));
        let _kept = open(arena.name(), &first.place).unwrap();
        assert_eq!(signals(&arena), 1);
        arena.allocate("e", "l", size, KEEP).unwrap();
        arena.wait_end(Some("e"));
    }
}

#[test]
fn many_threads_share_one_arena() {
    let arena = Arena::new(4 * MIB).unwrap();
    let sizes = [10, 30_000, 100_000, 700_000];
    std::thread::scope(|scope| {
        let one = |thread: u8| {
            let arena = &arena;
            scope.spawn(move || {
                for round in 0..300usize {
                    let value = thread.wrapping_mul(50).wrapping_add(round as u8);
                    let bytes = vec![value; sizes[(round + thread as usize) % sizes.len()]];
                    let place = put(arena, &format!("to {thread}"), "k", &bytes);
                    assert_eq!(read(arena, &place), bytes);
                }
            })
        };
        // Of these, ThreadSanitizer sees a join, but not the end of a scope.
        for thread in [0, 1, 2, 3].map(one) {
            thread.join().unwrap();
        }
    });
    assert_eq!(arena.outstanding(), 0);
    assert!(
        arena
            .edges()
            .iter()
            .all(|(_, held, refused)| (*held, *refused) == (0, 0))
    );
}

#[test]
fn room_is_not_given_away_while_a_lease_lives() {
    let arena = Arena::new(MIB).unwrap();
    let place = put(&arena, "e", "k", &[1; 300_000]);
    let lease = open(arena.name(), &place).unwrap();
    put(&arena, "e", "unread", &[1; 300_000]);
    let Err(AllocateError::Full(full)) = arena.allocate("e", "next", 600_000, KEEP) else {
        panic!("granted")
    };
    assert!(
        full.to_string()
            .contains(&format!("\"k\" is held by process {}", std::process::id())),
        "{full}"
    );
    // Another edge has its own credit.
    put(&arena, "other", "x", &[2; 600_000]);
    // SAFETY: the lease holds the extent.
    assert_eq!(unsafe { *lease.as_ptr() }, 1);
    std::thread::spawn(move || drop(lease)).join().unwrap();
    put(&arena, "e", "next", &[3; 600_000]);
    assert_eq!(arena.outstanding(), 3);
}

#[test]
fn leases_outlive_the_arena() {
    let arena = Arena::new(MIB).unwrap();
    let place = put(&arena, "e", "k", &[9; 5000]);
    let lease = open(arena.name(), &place).unwrap();
    drop(arena);
    // SAFETY: the lease holds the extent.
    let bytes = unsafe { std::slice::from_raw_parts(lease.as_ptr(), lease.len()) };
    assert_eq!(bytes, [9; 5000]);
}

#[test]
fn memory_of_a_sender_that_is_gone_is_let_go_with_the_last_lease() {
    let until = |condition: &dyn Fn() -> bool| {
        let start = std::time::Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let arena = Arena::new(MIB).unwrap();
    let name = arena.name().to_owned();
    let lease = open(&name, &put(&arena, "e", "k", &[9; 5000])).unwrap();
    let unread = put(&arena, "e", "l", &[8; 5000]);
    drop(arena);
    // A payload from before the end can be read while a lease keeps the arena mapped.
    drop(open(&name, &unread).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    assert!(remotes::is_mapped(&name));
    drop(lease);
    until(&|| !remotes::is_mapped(&name));

    // Without a lease it is unmapped when the sender ends.
    let arena = Arena::new(MIB).unwrap();
    let name = arena.name().to_owned();
    read(&arena, &put(&arena, "e", "k", &[9; 5000]));
    assert!(remotes::is_mapped(&name));
    drop(arena);
    until(&|| !remotes::is_mapped(&name));
}

#[test]
fn revoked_and_expired_payloads_are_stale() {
    let arena = Arena::new(MIB).unwrap();
    let place = put(&arena, "e", "gone", &[1; 10]);
    assert_eq!(arena.revoke("gone"), 1);
    assert!(matches!(open(arena.name(), &place), Err(OpenError::Stale)));

    let late = arena
        .allocate("e", "late", 10, Duration::ZERO)
        .unwrap()
        .publish()
        .place;
    assert_eq!(arena.outstanding(), 0);
    let next = put(&arena, "e", "next", &[2; 10]);
    assert!(matches!(open(arena.name(), &late), Err(OpenError::Stale)));
    assert_eq!(read(&arena, &next), [2; 10]);
}

#[test]
fn a_payload_over_the_limit_has_memory_of_its_own() {
    let arena = Arena::new(MIB).unwrap();
    let big: Vec<u8> = (0..3 * MIB).map(|i| i as u8).collect();
    let place = put(&arena, "e", "big", &big);
    assert_ne!(place.segment, 0);
    assert!(matches!(
        arena.allocate("e", "next", 1, KEEP),
        Err(AllocateError::Full(_))
    ));
    assert_eq!(read(&arena, &place), big);
    assert_eq!(arena.outstanding(), 0);
    arena.allocate("e", "next", 1, KEEP).unwrap();
}

#[test]
fn places_outside_the_memory_are_refused_and_returned() {
    let arena = Arena::new(MIB).unwrap();
    let place = put(&arena, "e", "k", &[1; 10]);
    let outside = Place {
        offset: u64::MAX - 4,
        ..place
    };
    assert!(matches!(
        open(arena.name(), &outside),
        Err(OpenError::Malformed)
    ));
    assert_eq!(arena.outstanding(), 0);
    assert!(matches!(
        open(
            arena.name(),
            &Place {
                ticket: u32::MAX,
                ..place
            }
        ),
        Err(OpenError::Malformed)
    ));
    assert!(matches!(
        open("sglang-omni-nowhere", &place),
        Err(OpenError::Unreachable(_))
    ));
}
