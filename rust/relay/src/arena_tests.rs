//! Sender and reader in one process; processes that die are tested from Python.

use std::time::Duration;

use crate::{AllocateError, Arena, Grant, Place, ReadError, TicketState, open};

const KEEP: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn put(arena: &Arena, edge: &str, key: &str, bytes: &[u8]) -> Place {
    let grant: Grant = arena.allocate(edge, key, bytes.len() as u64, KEEP).unwrap();
    // SAFETY: the grant is ours and that long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), grant.ready(), bytes.len()) };
    grant.place
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
    assert!(matches!(open(arena.name(), &place), Err(ReadError::Stale)));
    assert_eq!(arena.outstanding(), 0);
    assert_eq!(arena.edges(), [("e".to_owned(), 0, 0)]);
}

#[test]
fn room_is_not_given_away_while_a_lease_lives() {
    let arena = Arena::new(MIB).unwrap();
    let place = put(&arena, "e", "k", &[1; 600_000]);
    let lease = open(arena.name(), &place).unwrap();
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
fn revoked_and_expired_payloads_are_stale() {
    let arena = Arena::new(MIB).unwrap();
    let place = put(&arena, "e", "gone", &[1; 10]);
    assert_eq!(arena.revoke("gone"), 1);
    assert!(matches!(open(arena.name(), &place), Err(ReadError::Stale)));

    let late = arena
        .allocate("e", "late", 10, Duration::ZERO)
        .unwrap()
        .place;
    assert_eq!(arena.outstanding(), 0);
    let next = put(&arena, "e", "next", &[2; 10]);
    assert!(matches!(open(arena.name(), &late), Err(ReadError::Stale)));
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
        Err(ReadError::Malformed)
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
        Err(ReadError::Malformed)
    ));
    assert!(matches!(
        open("sglang-omni-nobody", &place),
        Err(ReadError::Unreachable(_))
    ));
}
