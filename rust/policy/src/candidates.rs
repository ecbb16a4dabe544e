//! The workers among which a policy chooses.

use std::cmp::Ordering;

/// A worker that may take a request, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The worker's index in tables of workers: small, and no other worker's while a request or a claim
    /// refers to this one.
    pub slot: u32,
    /// Requests in flight.
    pub load: usize,
    /// [`url_hash`] of the worker's URL.
    pub url_hash: u64,
}

/// The hash that tells workers apart to `consistent_hash`: the same in every router and after every restart.
pub fn url_hash(url: &str) -> u64 {
    rapidhash::v3::rapidhash_v3(url.as_bytes())
}

/// At least one candidate, in the order in which the workers joined the fleet.
#[derive(Clone, Copy)]
pub struct Candidates<'a>(&'a [Candidate]);

impl<'a> Candidates<'a> {
    /// # Panics
    ///
    /// If there are none.
    pub fn new(candidates: &'a [Candidate]) -> Self {
        assert!(
            !candidates.is_empty(),
            "a policy chooses among at least one worker"
        );
        Candidates(candidates)
    }

    #[expect(clippy::len_without_is_empty, reason = "they are never empty")]
    pub fn len(self) -> usize {
        self.0.len()
    }

    pub fn get(self, index: usize) -> &'a Candidate {
        &self.0[index]
    }

    pub fn iter(self) -> std::slice::Iter<'a, Candidate> {
        self.0.iter()
    }

    /// The index of the candidate with the smallest rank; among equal ones, one at random.
    pub fn min_by_key<K: Ord>(self, rank: impl Fn(&Candidate) -> K) -> usize {
        let mut best = (rank(self.get(0)), 0);
        let mut equals = 1;
        for (index, worker) in self.iter().enumerate().skip(1) {
            let here = rank(worker);
            match here.cmp(&best.0) {
                Ordering::Less => (best, equals) = ((here, index), 1),
                Ordering::Equal => {
                    equals += 1;
                    if fastrand::usize(..equals) == 0 {
                        best.1 = index;
                    }
                }
                Ordering::Greater => {}
            }
        }
        best.1
    }

    /// The index of the candidate with the fewest requests in flight.
    pub fn least_loaded(self) -> usize {
        self.min_by_key(|worker| worker.load)
    }
}
