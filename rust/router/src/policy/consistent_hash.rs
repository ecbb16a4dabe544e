use rapidhash::v3::rapidhash_v3;

use super::{Candidates, Decision, Policy, RequestKey};
use crate::fleet::worker::Worker;

/// The same session on the same worker: each worker's name is hashed with the session, and the highest
/// wins, so that a worker which comes or goes moves only its own sessions. Requests that name no session
/// go by the start of their text, and those without text by load.
pub struct ConsistentHash;

/// Enough of a prompt to tell conversations apart, and little enough to stay the same as they grow.
const PREFIX_BYTES: usize = 256;

impl Policy for ConsistentHash {
    fn pick<'a>(&self, candidates: Candidates<'a>, request: &RequestKey<'_>) -> Decision<'a> {
        let key = match request.session {
            b"" => &request.text[..request.text.len().min(PREFIX_BYTES)],
            session => session,
        };
        if key.is_empty() {
            return candidates.best_by_key(Worker::load).into();
        }
        let hash = rapidhash_v3(key);
        let score = |worker: &Worker| {
            let pair = [hash, rapidhash_v3(worker.url.as_bytes())].map(u64::to_le_bytes);
            std::cmp::Reverse(rapidhash_v3(pair.as_flattened()))
        };
        candidates.best_by_key(score).into()
    }

    fn reads_request(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::testing::fleet;
    use super::*;

    fn pick(fleet: &[Arc<Worker>], eligible: &[usize], session: &str) -> u32 {
        let request = RequestKey {
            session: session.as_bytes(),
            text: b"ignored",
            ..RequestKey::default()
        };
        ConsistentHash
            .pick(Candidates::new(fleet, eligible), &request)
            .worker
            .id
    }

    #[test]
    fn only_the_sessions_of_a_lost_worker_move() {
        let fleet = fleet(4);
        let lost = fleet[2].id;
        let mut used = std::collections::HashSet::new();
        for session in 0..200 {
            let session = format!("session-{session}");
            let before = pick(&fleet, &[0, 1, 2, 3], &session);
            let after = pick(&fleet, &[0, 1, 3], &session);
            assert!(before == after || before == lost);
            used.insert(before);
        }
        assert_eq!(used.len(), 4);
    }
}
