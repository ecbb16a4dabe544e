//! `random`: any worker, each as likely.

use crate::{Candidates, Decision, Policy, RequestKey};

pub struct Random;

impl Policy for Random {
    fn pick(&self, candidates: Candidates<'_>, _request: &RequestKey<'_>) -> Decision {
        fastrand::usize(..candidates.len()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fleet, picks};

    #[test]
    fn takes_every_worker() {
        let picks = picks(&Random, &fleet(3), std::iter::repeat_n("", 300));
        assert!((0..3).all(|worker| picks.contains(&worker)));
    }
}
