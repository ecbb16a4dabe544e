//! `least_load`: the worker with the fewest requests in flight.

use crate::{Candidates, Decision, Policy, RequestKey};

pub struct LeastLoad;

impl Policy for LeastLoad {
    fn pick(&self, candidates: Candidates<'_>, _request: &RequestKey<'_>) -> Decision {
        candidates.least_loaded().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fleet, picks};

    #[test]
    fn avoids_busy_workers() {
        let mut fleet = fleet(3);
        (fleet[0].load, fleet[2].load) = (2, 1);
        assert_eq!(picks(&LeastLoad, &fleet, ["", "", ""]), [1, 1, 1]);
    }

    #[test]
    fn ties_are_spread() {
        let picks = picks(&LeastLoad, &fleet(4), std::iter::repeat_n("", 400));
        for worker in 0..4 {
            assert!(picks.iter().filter(|&&pick| pick == worker).count() > 40);
        }
    }
}
