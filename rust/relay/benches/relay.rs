//! What a payload costs beside its copy: credit, room, ticket, and the reader's part of it.

use std::time::Duration;

use divan::Bencher;
use sglang_omni_relay::{Access, Arena, Ledger, open};

const KEEP: Duration = Duration::from_secs(60);
const SIZES: [u64; 3] = [20 << 10, 1 << 20, 64 << 20];

fn main() {
    divan::main();
}

#[divan::bench(threads = [1, 2])]
fn ledger_take_and_give_back(bencher: Bencher) {
    let ledger = Ledger::new(1 << 30);
    bencher.bench(|| {
        let edge = ledger.edge("reader");
        edge.take(100);
        edge.give_back(100)
    });
}

/// The smallest are slots, the largest a range.
#[divan::bench(args = SIZES)]
fn allocate_and_take_back(bencher: Bencher, len: u64) {
    let arena = Arena::new(1 << 30).unwrap();
    bencher.bench_local(|| {
        arena
            .allocate("reader", "key", len, KEEP)
            .unwrap()
            .publish();
        arena.revoke("key")
    });
}

/// As many payloads under way as a slow reader may have.
#[divan::bench(args = [0, 100, 500])]
fn allocate_open_and_drop(bencher: Bencher, under_way: usize) {
    let arena = Arena::new(1 << 30).unwrap();
    for _ in 0..under_way {
        arena
            .allocate("slow", "other", 100, KEEP)
            .unwrap()
            .publish();
    }
    bencher.bench_local(|| {
        let grant = arena.allocate("reader", "key", 100, KEEP).unwrap();
        let place = grant.publish().place;
        open(arena.name(), &place, Access::Sole).unwrap().len()
    });
}
