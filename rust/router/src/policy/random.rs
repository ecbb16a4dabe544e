use std::sync::Arc;

use super::{Candidates, Policy, RequestKey};
use crate::worker::Worker;

/// Any worker, each as likely.
pub struct Random;

impl Policy for Random {
    fn pick<'a>(&self, candidates: Candidates<'a>, _request: &RequestKey<'_>) -> &'a Arc<Worker> {
        candidates.get(fastrand::usize(..candidates.len()))
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
