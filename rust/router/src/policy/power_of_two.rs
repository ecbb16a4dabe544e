use super::{Candidates, Decision, Policy, RequestKey};

/// The less loaded of two different workers taken at random: near the least load for the price of
/// looking at two, and without every router rushing to the same idle worker.
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn pick<'a>(&self, candidates: Candidates<'a>, _request: &RequestKey<'_>) -> Decision<'a> {
        let first = fastrand::usize(..candidates.len());
        if candidates.len() == 1 {
            return candidates.get(first).into();
        }
        let second = (first + 1 + fastrand::usize(..candidates.len() - 1)) % candidates.len();
        let (first, second) = (candidates.get(first), candidates.get(second));
        if second.load() < first.load() {
            second.into()
        } else {
            first.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, picks};
    use super::*;
    use crate::fleet::worker::LoadGuard;

    #[test]
    fn never_takes_the_most_loaded() {
        let fleet = fleet(3);
        let _busy = LoadGuard::new(fleet[1].clone());
        let picks = picks(&PowerOfTwo, &fleet, std::iter::repeat_n("", 200));
        assert!(!picks.contains(&1) && picks.contains(&0) && picks.contains(&2));
    }
}
