//! `round_robin`: one worker after the other, over all threads together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{Candidates, Decision, Policy, RequestKey};

#[derive(Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl Policy for RoundRobin {
    /// A retry takes no turn. If it did, a worker of two that refuses what it is asked would always be asked first.
    fn pick(&self, candidates: Candidates<'_>, request: &RequestKey<'_>) -> Decision {
        let turn = match request.is_retry {
            true => self.next.load(Relaxed),
            false => self.next.fetch_add(1, Relaxed),
        };
        (turn % candidates.len()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fleet, picks};

    #[test]
    fn a_retry_takes_no_turn() {
        let (policy, fleet) = (RoundRobin::default(), fleet(2));
        let pick = |fleet: &[_], is_retry| {
            let request = RequestKey {
                is_retry,
                ..RequestKey::default()
            };
            policy.pick(Candidates::new(fleet), &request).index
        };
        for turn in 0..4 {
            assert_eq!(pick(&fleet, false), turn % 2);
            assert_eq!(pick(&fleet[1..], true), 0);
        }
    }

    #[test]
    fn goes_round() {
        assert_eq!(
            picks(&RoundRobin::default(), &fleet(3), ["", "", "", "", ""]),
            [0, 1, 2, 0, 1]
        );
    }
}
