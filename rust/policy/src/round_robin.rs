//! `round_robin`: one worker after the other, over all threads together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{Candidates, Decision, Policy, RequestKey};

#[derive(Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl Policy for RoundRobin {
    fn pick(&self, candidates: Candidates<'_>, _request: &RequestKey<'_>) -> Decision {
        (self.next.fetch_add(1, Relaxed) % candidates.len()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fleet, picks};

    #[test]
    fn goes_round() {
        assert_eq!(
            picks(&RoundRobin::default(), &fleet(3), ["", "", "", "", ""]),
            [0, 1, 2, 0, 1]
        );
    }
}
