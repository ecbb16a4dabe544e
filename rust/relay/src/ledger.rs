//! Credits per edge: how much of a limit each target has in use. Edges do not share, so a target
//! that never gives anything back stops only itself.

use std::collections::HashMap;

#[derive(Debug, Default)]
struct Edge {
    held: u64,
    waited: u64,
}

/// Counts whatever unit the backend deals in: bytes of an arena, slots of a transfer engine.
#[derive(Debug)]
pub struct Ledger {
    limit: u64,
    edges: HashMap<String, Edge>,
}

impl Ledger {
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            edges: HashMap::new(),
        }
    }

    /// Takes `amount` for an edge and returns what it holds now; `None` where that passes the limit.
    ///
    /// An edge that holds no more than half its limit is granted any amount. Its readers may keep views
    /// of that much for as long as they like (beyond it they are told to copy), so a large amount could
    /// wait for ever otherwise.
    pub fn take(&mut self, edge: &str, amount: u64) -> Option<u64> {
        if !self.edges.contains_key(edge) {
            self.edges.insert(edge.to_owned(), Edge::default());
        }
        let entry = self.edges.get_mut(edge)?;
        if entry.held > self.limit / 2 && entry.held.saturating_add(amount) > self.limit {
            entry.waited += 1;
            return None;
        }
        entry.held += amount;
        Some(entry.held)
    }

    /// Returns what was taken for an edge.
    pub fn give_back(&mut self, edge: &str, amount: u64) {
        if let Some(entry) = self.edges.get_mut(edge) {
            entry.held = entry.held.saturating_sub(amount);
        }
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn held(&self, edge: &str) -> u64 {
        self.edges.get(edge).map_or(0, |entry| entry.held)
    }

    /// `(edge, held, times refused)` for every edge seen.
    pub fn snapshot(&self) -> Vec<(String, u64, u64)> {
        self.edges
            .iter()
            .map(|(name, edge)| (name.clone(), edge.held, edge.waited))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_full_edge_does_not_stop_another() {
        let mut ledger = Ledger::new(10);
        assert_eq!(ledger.take("a", 10), Some(10));
        assert_eq!(ledger.take("a", 1), None);
        assert_eq!(ledger.take("b", 10), Some(10));
        ledger.give_back("a", 10);
        assert_eq!(ledger.take("a", 1), Some(1));
        let mut edges = ledger.snapshot();
        edges.sort();
        assert_eq!(edges, [("a".into(), 1, 1), ("b".into(), 10, 0)]);
    }

    #[test]
    fn views_kept_for_ever_do_not_stop_a_large_amount() {
        let mut ledger = Ledger::new(10);
        assert_eq!(ledger.take("a", 5), Some(5));
        assert_eq!(ledger.take("a", 25), Some(30));
        assert_eq!(ledger.take("a", 1), None);
        ledger.give_back("a", 25);
        assert_eq!(ledger.take("a", 1), Some(6));
        assert_eq!(ledger.take("a", 25), None);
        assert_eq!(ledger.take("a", 4), Some(10));
    }
}
