//! Credits per edge: how much of a limit each target has in use. Edges do not share, so a target
//! that never gives anything back stops only itself.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, OnceLock};

#[cfg(feature = "loom")]
use loom::sync::atomic::AtomicU64;
#[cfg(not(feature = "loom"))]
use std::sync::atomic::AtomicU64;

/// What one target has in use.
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

    /// Takes `amount` and returns what the edge holds now; `None` where that passes the limit.
    ///
    /// An edge that holds no more than half its limit is granted any amount. Its readers may keep views
    /// of that much for as long as they like (beyond it they are told to copy), so a large amount could
    /// wait for ever otherwise.
    pub fn take(&self, amount: u64) -> Option<u64> {
        self.change(|held| {
            let after = held.checked_add(amount)?;
            (held <= self.limit / 2 || after <= self.limit).then_some(after)
        })
    }

    /// Returns what was taken. False, and nothing changed, where that is more than the edge holds.
    pub fn give_back(&self, amount: u64) -> bool {
        self.change(|held| held.checked_sub(amount)).is_some()
    }

    /// Its place among its ledger's edges.
    pub fn number(&self) -> usize {
        self.number
    }

    pub fn held(&self) -> u64 {
        self.held.load(Acquire)
    }

    /// Counts one that waits until it is granted something, however often it asks.
    pub fn note_wait(&self) {
        self.waits.fetch_add(1, Relaxed);
    }

    /// How many have waited.
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

/// Counts whatever unit the backend deals in: bytes of an arena, slots of a transfer engine.
#[derive(Debug)]
pub struct Ledger {
    limit: u64,
    first: OnceLock<Box<Entry>>,
}

/// A stage sends to a handful of others, so a list that only grows finds an edge soonest.
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

    /// The edge of that name, which has the ledger's limit for its own.
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

    /// `(edge, held, how many have waited)` for every edge seen.
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
    fn views_kept_for_ever_do_not_stop_a_large_amount() {
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
