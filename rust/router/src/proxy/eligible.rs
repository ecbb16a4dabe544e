//! The workers that may take a request. In the plain case they are those of the last request, and only their loads are
//! read: with a thousand workers, looking at each costs more than all else that the router does for a request.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use sglang_omni_policy::Candidate;

use crate::fleet::changes;
use crate::fleet::health_flags::HealthFlags;
use crate::fleet::models::Serving;
use crate::fleet::worker::Worker;

#[derive(Default)]
pub struct Eligible {
    /// Positions in the fleet.
    positions: Vec<usize>,
    /// For each: what the policy knows of it, and where its load is counted.
    candidates: Vec<Candidate>,
    loads: Vec<&'static AtomicU32>,
    /// The fleet's list and the changes so far, if a request that every worker may take would find the same ones.
    found_in: Option<(*const Vec<Arc<Worker>>, u64)>,
}

impl Eligible {
    /// The workers in the best tier that has any, other than those `tried`.
    pub fn find(
        &mut self,
        fleet: &Arc<Vec<Arc<Worker>>>,
        tried: &[u32],
        serving: Serving<'_>,
    ) -> &[Candidate] {
        let is_plain = tried.is_empty() && matches!(serving, Serving::Every);
        // A list at the address of an older one comes with more changes.
        let found_in = is_plain.then(|| (Arc::as_ptr(fleet), changes::so_far()));
        if found_in.is_none() || self.found_in != found_in {
            self.search(fleet, tried, serving);
            self.found_in = found_in;
        }
        for (candidate, load) in self.candidates.iter_mut().zip(&self.loads) {
            candidate.load = load.load(Relaxed) as usize;
        }
        &self.candidates
    }

    /// The candidates that were found last.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The range of candidates that holds only the worker of this id; None if that was not found.
    pub fn only(&self, fleet: &[Arc<Worker>], id: u32) -> Option<Range<usize>> {
        let ids = |&position: &usize| fleet[position].id;
        let at = self.positions.binary_search_by_key(&id, ids).ok()?;
        Some(at..at + 1)
    }

    /// The position in the fleet of a candidate that was found.
    pub fn position(&self, index: usize) -> usize {
        self.positions[index]
    }

    fn search(&mut self, fleet: &[Arc<Worker>], tried: &[u32], serving: Serving<'_>) {
        let mut best = HealthFlags::LAST_TIER;
        let is_kept = matches!(serving, Serving::Keeper(_));
        self.positions.clear();
        for (position, worker) in fleet.iter().enumerate() {
            let tier = worker.flags.tier();
            if tier > best
                || (worker.is_draining() && !is_kept)
                || tried.contains(&worker.id)
                || !serving.includes(worker)
            {
                continue;
            }
            if tier < best {
                best = tier;
                self.positions.clear();
            }
            self.positions.push(position);
        }
        let found = || self.positions.iter().map(|&position| &fleet[position]);
        self.candidates.clear();
        self.candidates
            .extend(found().map(|worker| worker.candidate()));
        self.loads.clear();
        self.loads
            .extend(found().map(|worker| worker.load_counter()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::health_flags::Demotion;
    use crate::fleet::worker::testing::fleet;
    use crate::fleet::worker::{Authorization, Fleet, LoadGuard};

    /// Slots and loads of the workers that a plain request finds.
    fn found(eligible: &mut Eligible, fleet: &Arc<Vec<Arc<Worker>>>) -> Vec<(u32, usize)> {
        let found = eligible.find(fleet, &[], Serving::Every);
        found
            .iter()
            .map(|worker| (worker.slot, worker.load))
            .collect()
    }

    #[test]
    fn every_change_is_seen_by_the_next_request() {
        let fleet = Arc::new(fleet(3));
        let mut eligible = Eligible::default();
        let slots = [0, 1, 2].map(|worker: usize| fleet[worker].slot());
        let mut expect = |workers: &[(usize, usize)], why: &str| {
            let workers: Vec<_> = workers
                .iter()
                .map(|&(at, load)| (slots[at], load))
                .collect();
            assert_eq!(found(&mut eligible, &fleet), workers, "{why}");
        };
        expect(&[(0, 0), (1, 0), (2, 0)], "at first");
        let guard = LoadGuard::new(fleet[1].clone());
        expect(&[(0, 0), (1, 1), (2, 0)], "a request in flight");
        drop(guard);
        fleet[0].flags.demote(Demotion::Failing);
        expect(&[(1, 0), (2, 0)], "demoted");
        fleet[2].set_draining(true);
        expect(&[(1, 0)], "draining");
        fleet[0].flags.offer_trial(u32::MAX);
        expect(&[(0, 0), (1, 0)], "a trial");
        fleet[0].flags.chosen(|| u32::MAX);
        expect(&[(1, 0)], "after its trial");
        fleet[2].set_draining(false);
        fleet[0].flags.restore(Demotion::Failing);
        expect(&[(0, 0), (1, 0), (2, 0)], "all again");
    }

    #[test]
    fn a_request_that_not_every_worker_may_take_changes_nothing_for_the_next() {
        let fleet = Arc::new(fleet(3));
        let mut eligible = Eligible::default();
        for _ in 0..2 {
            assert_eq!(found(&mut eligible, &fleet).len(), 3);
            let tried = [fleet[0].id];
            assert_eq!(eligible.find(&fleet, &tried, Serving::Every).len(), 2);
            assert_eq!(eligible.position(0), 1);
            let keeper = Serving::Keeper(fleet[2].id);
            assert_eq!(eligible.find(&fleet, &[], keeper).len(), 1);
            assert_eq!(eligible.position(0), 2);
        }
    }

    #[test]
    fn workers_that_come_and_go_are_seen() {
        let fleet = Fleet::new(Vec::new(), |_| ());
        let mut eligible = Eligible::default();
        for round in 0..50 {
            let url = format!("http://a:{}", 1 + round).parse().unwrap();
            let (worker, _) = fleet.add(url, Authorization::OfFleet);
            assert_eq!(found(&mut eligible, &fleet.read()), [(worker.slot(), 0)]);
            fleet.remove(&worker);
            assert_eq!(found(&mut eligible, &fleet.read()), []);
        }
    }
}
