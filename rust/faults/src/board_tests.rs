//! Boards as files, and their counting; what a fault does is in `tests/process.rs`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::{Action, Board, Order};

const ORDER: Order = Order {
    action: Action::Drop,
    argument: 0,
    after: 1,
    times: 1,
    pid: 0,
};

fn new_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("faults-board-{}-{number}", std::process::id()))
}

/// One board, mapped twice.
fn boards() -> [Board; 2] {
    let path = new_path();
    let boards = [Board::create(&path).unwrap(), Board::open(&path).unwrap()];
    fs::remove_file(path).unwrap();
    boards
}

/// `(hits, fired, armed)` of a point.
fn seen(board: &Board, name: &str) -> (u64, u64, bool) {
    let points = board.points().unwrap();
    let point = points.iter().find(|point| point.name == name).unwrap();
    (point.hits, point.fired, point.armed)
}

#[test]
fn what_one_mapping_arms_fires_in_the_other() {
    let [driver, server] = boards();
    assert!(server.hit("a.b").is_none());
    driver.arm("a.b", Order { after: 2, ..ORDER }).unwrap();
    assert_eq!(seen(&server, "a.b"), (1, 0, true));
    assert!(server.hit("a.b").is_none());
    assert!(server.hit("another").is_none());
    let hit = server.hit("a.b").unwrap();
    assert_eq!((hit.action, hit.argument), (Action::Drop, 0));
    assert!(server.hit("a.b").is_none());
    assert_eq!(seen(&driver, "a.b"), (4, 1, false));
    assert_eq!(seen(&driver, "another"), (1, 0, false));
    let pids: Vec<_> = driver
        .points()
        .unwrap()
        .iter()
        .map(|point| point.fired_pid)
        .collect();
    assert!(pids.contains(&std::process::id()) && pids.contains(&0));
}

#[test]
fn of_many_threads_exactly_the_hits_in_question_fire() {
    let [driver, server] = boards();
    let order = Order {
        after: 100_001,
        times: 200_000,
        ..ORDER
    };
    driver.arm("x", order).unwrap();
    // Long enough for threads to meet, so that a countdown in two steps would miscount.
    let count = || (0..100_000).filter(|_| server.hit("x").is_some()).count();
    let fired: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(count)).collect();
        let counts = threads.into_iter().map(|thread| thread.join().unwrap());
        counts.sum()
    });
    assert_eq!(fired, 200_000);
    assert_eq!(seen(&driver, "x"), (800_000, 200_000, false));
}

#[test]
fn a_point_that_is_disarmed_or_armed_for_others_does_not_fire() {
    let [driver, server] = boards();
    driver.arm("x", ORDER).unwrap();
    driver.disarm();
    assert!(server.hit("x").is_none());
    let other = std::process::id() + 1;
    driver
        .arm(
            "x",
            Order {
                pid: other,
                ..ORDER
            },
        )
        .unwrap();
    assert!(server.hit("x").is_none());
    assert_eq!(seen(&driver, "x"), (2, 0, true));
    let own = std::process::id();
    driver.arm("x", Order { pid: own, ..ORDER }).unwrap();
    assert!(server.hit("x").is_some());
}

#[test]
fn threads_that_reach_a_new_point_together_share_its_slot() {
    let [driver, server] = boards();
    let names: Vec<String> = (0..200).map(|n| format!("point.{n}")).collect();
    std::thread::scope(|scope| {
        let hit_all = || {
            names
                .iter()
                .for_each(|name| assert!(server.hit(name).is_none()))
        };
        // Of these, ThreadSanitizer sees a join, but not the end of a scope.
        for thread in [(); 4].map(|()| scope.spawn(hit_all)) {
            thread.join().unwrap();
        }
    });
    let points = driver.points().unwrap();
    assert_eq!(points.len(), names.len());
    assert!(points.iter().all(|point| point.hits == 4));
}

#[test]
fn points_that_find_no_slot_are_reported() {
    let [driver, server] = boards();
    for n in 0..256 {
        server.hit(&format!("point.{n}"));
    }
    assert_eq!(driver.points().unwrap().len(), 256);
    assert!(driver.arm("point.5", ORDER).is_ok());
    let error = driver.arm("one more", ORDER).unwrap_err();
    assert_eq!(error.to_string(), r#""one more": all 256 slots are taken"#);
    server.hit("one more");
    let error = driver.points().unwrap_err();
    assert!(error.to_string().contains("reached 1 times"), "{error}");
}

#[test]
fn orders_that_mean_nothing_are_refused() {
    let [driver, _] = boards();
    let long = "x".repeat(49);
    let delay = Action::Delay;
    for (name, order) in [
        ("", ORDER),
        (&*long, ORDER),
        ("x", Order { after: 0, ..ORDER }),
        ("x", Order { times: 0, ..ORDER }),
        (
            "x",
            Order {
                action: delay,
                ..ORDER
            },
        ),
    ] {
        assert!(driver.arm(name, order).is_err(), "{name} {order:?}");
    }
    assert_eq!(driver.points().unwrap(), []);
}

#[test]
fn only_a_board_is_opened_and_no_file_is_overwritten() {
    let path = new_path();
    assert!(Board::open(&path).is_err());
    Board::create(&path).unwrap();
    assert!(Board::create(&path).is_err());
    let mut bytes = fs::read(&path).unwrap();
    assert!(Board::open(&path).is_ok());
    bytes[8] += 1; // its version
    fs::write(&path, &bytes).unwrap();
    let error = Board::open(&path).unwrap_err();
    assert_eq!(error.to_string(), "it is no board of this version");
    fs::write(&path, &bytes[..100]).unwrap();
    assert!(Board::open(&path).is_err());
    fs::remove_file(path).unwrap();
}

#[test]
fn actions_have_names() {
    for action in Action::ALL {
        assert_eq!(Action::named(action.name()), Some(action));
        assert_eq!(Action::of(action as u32), Some(action));
    }
    assert_eq!(Action::named("explode"), None);
}
