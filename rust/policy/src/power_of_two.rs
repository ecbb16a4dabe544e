//! `power_of_two`: the less loaded of two different workers taken at random. That comes near the least load,
//! and several routers do not all rush to the same idle worker.

use crate::{Candidates, Decision, Policy, RequestKey};

pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn pick(&self, candidates: Candidates<'_>, _request: &RequestKey<'_>) -> Decision {
        let count = candidates.len();
        let first = fastrand::usize(..count);
        if count == 1 {
            return first.into();
        }
        let second = (first + 1 + fastrand::usize(..count - 1)) % count;
        match candidates.get(second).load < candidates.get(first).load {
            true => second.into(),
            false => first.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fleet, picks};

    #[test]
    fn never_takes_the_most_loaded() {
        let mut fleet = fleet(3);
        fleet[1].load = 1;
        let picks = picks(&PowerOfTwo, &fleet, std::iter::repeat_n("", 200));
        assert!(!picks.contains(&1) && picks.contains(&0) && picks.contains(&2));
    }
}
