use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Candidates, Decision, Policy, RequestKey};

/// One after the other, over all threads together.
#[derive(Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl Policy for RoundRobin {
    fn pick<'a>(&self, candidates: Candidates<'a>, _request: &RequestKey<'_>) -> Decision<'a> {
        candidates
            .get(self.next.fetch_add(1, Relaxed) % candidates.len())
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, picks};
    use super::*;

    #[test]
    fn goes_round() {
        assert_eq!(
            picks(&RoundRobin::default(), &fleet(3), ["", "", "", "", ""]),
            [0, 1, 2, 0, 1]
        );
    }
}
