use super::{Candidates, Decision, Policy, RequestKey};

/// Any worker, each as likely.
pub struct Random;

impl Policy for Random {
    fn pick<'a>(&self, candidates: Candidates<'a>, _request: &RequestKey<'_>) -> Decision<'a> {
        candidates.get(fastrand::usize(..candidates.len())).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, picks};
    use super::*;

    #[test]
    fn takes_every_worker() {
        let picks = picks(&Random, &fleet(3), std::iter::repeat_n("", 300));
        assert!((0..3).all(|worker| picks.contains(&worker)));
    }
}
