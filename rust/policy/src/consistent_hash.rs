//! `consistent_hash`: the same session on the same worker. Each worker's URL is hashed with the session, and
//! the highest hash wins, so a worker that comes or goes moves only its own sessions. A request without a
//! session goes by the start of its text, and one without text by load.

use std::cmp::Reverse;

use rapidhash::v3::rapidhash_v3;

use crate::{Candidate, Candidates, Decision, Policy, RequestKey};

pub struct ConsistentHash;

/// Enough of a prompt to tell conversations apart, and little enough to stay the same as they grow.
const PREFIX_BYTES: usize = 256;

impl Policy for ConsistentHash {
    fn pick(&self, candidates: Candidates<'_>, request: &RequestKey<'_>) -> Decision {
        let key = match request.session {
            b"" => &request.text[..request.text.len().min(PREFIX_BYTES)],
            session => session,
        };
        if key.is_empty() {
            return candidates.least_loaded().into();
        }
        let hash = rapidhash_v3(key);
        let score = |worker: &Candidate| {
            let pair = [hash, worker.url_hash].map(u64::to_le_bytes);
            Reverse(rapidhash_v3(pair.as_flattened()))
        };
        candidates.min_by_key(score).into()
    }

    fn reads_request(&self) -> bool {
        true
    }

    fn places_sessions(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fleet;

    fn pick(fleet: &[Candidate], session: &str) -> u32 {
        let request = RequestKey {
            session: session.as_bytes(),
            text: b"ignored",
            ..RequestKey::default()
        };
        let decision = ConsistentHash.pick(Candidates::new(fleet), &request);
        fleet[decision.index].slot
    }

    #[test]
    fn only_the_sessions_of_a_lost_worker_move() {
        let fleet = fleet(4);
        let (lost, rest) = (fleet[2].slot, [fleet[0], fleet[1], fleet[3]]);
        let mut used = std::collections::HashSet::new();
        for session in 0..200 {
            let session = format!("session-{session}");
            let (before, after) = (pick(&fleet, &session), pick(&rest, &session));
            assert!(before == after || before == lost);
            used.insert(before);
        }
        assert_eq!(used.len(), 4);
    }
}
