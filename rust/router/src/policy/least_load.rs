use super::{Candidates, Decision, Policy, RequestKey};
use crate::fleet::worker::Worker;

/// The worker with the fewest requests in flight.
pub struct LeastLoad;

impl Policy for LeastLoad {
    fn pick<'a>(&self, candidates: Candidates<'a>, _request: &RequestKey<'_>) -> Decision<'a> {
        candidates.best_by_key(Worker::load).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, picks};
    use super::*;
    use crate::fleet::worker::LoadGuard;

    #[test]
    fn avoids_busy_workers() {
        let fleet = fleet(3);
        let _busy = [0, 0, 2].map(|worker: usize| LoadGuard::new(fleet[worker].clone()));
        assert_eq!(picks(&LeastLoad, &fleet, ["", "", ""]), [1, 1, 1]);
    }
}
