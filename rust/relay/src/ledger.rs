//! Credits of edges: how much of its limit each edge has in use. Edges do not share, so a target that never gives
//! anything back stops only its own edge.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, OnceLock};

#[cfg(feature = "loom")]
use loom::sync::atomic::AtomicU64;
#[cfg(not(feature = "loom"))]
use std::sync::atomic::AtomicU64;

/// The credit of one edge.
#[derive(Debug)]
pub struct Edge {
    number: usize,
    limit: u64,
    held: AtomicU64,
    waits: AtomicU64,
}

impl Edge {
    pub fn new(number: usize, limit: u64) -> Self {
        Self {
            number,
            limit,
            held: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// Takes `amount` and returns how much the edge holds now, or `None` if that would exceed the limit.
    ///
    /// An edge that holds at most half its limit is granted any amount. Its readers may keep views of so much without
    /// end (beyond it they are told to copy), so that a large amount might otherwise never be granted.
    pub fn take(&self, amount: u64) -> Option<u64> {
        self.change(|held| {
            let after = held.checked_add(amount)?;
            (held <= self.limit / 2 || after <= self.limit).then_some(after)
        })
    }

    /// Gives back `amount`. Returns false and changes nothing if the edge does not hold that much.
    pub fn give_back(&self, amount: u64) -> bool {
        self.change(|held| held.checked_sub(amount)).is_some()
    }

    /// The edge's number in its ledger, from 0 on.
    pub fn number(&self) -> usize {
        self.number
    }

    pub fn held(&self) -> u64 {
        self.held.load(Acquire)
    }

    /// Counts one wait for credit, however often the waiting caller asks.
    pub fn note_wait(&self) {
        self.waits.fetch_add(1, Relaxed);
    }

    /// How many waits there have been.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut held = self.held.load(Acquire);
        loop {
            let after = to(held)?;
            match self
                .held
                .compare_exchange_weak(held, after, AcqRel, Acquire)
            {
                Ok(_) => return Some(after),
                Err(now) => held = now,
            }
        }
    }
}

/// The credits of all edges, in the relay's unit: bytes of an arena, or slots of a transfer engine.
#[derive(Debug)]
pub struct Ledger {
    limit: u64,
    first: OnceLock<Box<Entry>>,
}

/// A stage sends to a handful of others, so that a list that only grows is the fastest way to find an edge.
#[derive(Debug)]
struct Entry {
    name: Box<str>,
    edge: Arc<Edge>,
    next: OnceLock<Box<Entry>>,
}

impl Ledger {
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            first: OnceLock::new(),
        }
    }

    /// The edge of that name, made on first use. Each edge has the ledger's whole limit.
    pub fn edge(&self, name: &str) -> &Arc<Edge> {
        let mut place = &self.first;
        for number in 0.. {
            let entry = place.get_or_init(|| {
                Box::new(Entry {
                    name: name.into(),
                    edge: Arc::new(Edge::new(number, self.limit)),
                    next: OnceLock::new(),
                })
            });
            if *entry.name == *name {
                return &entry.edge;
            }
            place = &entry.next;
        }
        unreachable!("a list has an end")
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// `(edge, held, number of waits)` of every edge seen.
    pub fn snapshot(&self) -> Vec<(String, u64, u64)> {
        std::iter::successors(self.first.get(), |entry| entry.next.get())
            .map(|entry| {
                let edge = &entry.edge;
                (entry.name.to_string(), edge.held(), edge.waits())
            })
            .collect()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn one_full_edge_does_not_stop_another() {
        let ledger = Ledger::new(10);
        assert_eq!(ledger.edge("a").take(10), Some(10));
        assert_eq!(ledger.edge("a").take(1), None);
        assert_eq!(ledger.edge("b").take(10), Some(10));
        assert!(ledger.edge("a").give_back(10));
        assert_eq!(ledger.edge("a").take(1), Some(1));
        ledger.edge("a").note_wait();
        assert_eq!(ledger.snapshot(), [("a".into(), 1, 1), ("b".into(), 10, 0)]);
    }

    #[test]
    fn views_that_are_kept_do_not_stop_a_large_amount() {
        let edge = Edge::new(0, 10);
        assert_eq!(edge.take(5), Some(5));
        assert_eq!(edge.take(25), Some(30));
        assert_eq!(edge.take(1), None);
        assert!(edge.give_back(25));
        assert_eq!(edge.take(1), Some(6));
        assert_eq!(edge.take(25), None);
        assert_eq!(edge.take(4), Some(10));
    }

    #[test]
    fn only_what_was_taken_can_be_given_back() {
        let edge = Edge::new(0, 10);
        assert_eq!(edge.take(3), Some(3));
        assert!(!edge.give_back(4));
        assert_eq!(edge.held(), 3);
        assert!(edge.give_back(3));
    }
}
