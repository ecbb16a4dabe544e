//! Weighs load against cached text: how many bytes of a prompt it is worth computing again on another worker
//! because this one is busier.

use crate::costs::sum;
use crate::{Candidate, Candidates};

/// The weights of a decision's parts. The defaults were chosen with `benches/router_sim`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// The cost of a worker with as much load as the others, in mean prompts.
    pub load: f32,
    /// Requests in flight that a worker's fair share of the recent requests counts for. It keeps shares
    /// even where little is in flight, and damps what a few requests more or less in flight do.
    pub recent: f32,
    /// How far back `recent` looks, in requests per worker.
    pub memory: f32,
    /// How much more the load weighs while the queues are imbalanced.
    pub imbalance: f32,
    /// How much a cold prompt avoids a worker with twice the mean tree, in mean prompts.
    pub tree: f32,
    /// Whether the `cached_tokens` that workers report correct the tree.
    pub correction: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            load: 0.4,
            recent: 4.0,
            memory: 32.0,
            imbalance: 2.0,
            tree: 0.1,
            correction: true,
        }
    }
}

/// Each worker's share of the recent requests, and the length of prompts.
#[derive(Default)]
pub struct Balance {
    /// Recent requests by worker's slot. Older ones count less: instead of shrinking all counts, `unit`, the weight
    /// of the next request, grows.
    recent: Vec<f32>,
    unit: f32,
    /// The `recent` of each candidate of the current decision.
    of_candidates: Vec<f32>,
    /// The mean bytes of a prompt over the last `span` answered ones; `answered` is how many there were, at most
    /// `span`.
    mean_answered: f32,
    answered: f32,
    span: f32,
    /// Prompts without an answer yet, and their bytes.
    waiting: usize,
    waiting_text: usize,
}

/// The least weight of recent shares: enough to break ties.
const LITTLE: f32 = 0.01;

impl Balance {
    /// Writes the penalty of each candidate's load, in bytes, to `penalties`, and returns whether the queues are
    /// imbalanced: `is_imbalanced` decides that by the shortest and the longest one.
    pub fn penalties(
        &mut self,
        tuning: &Tuning,
        candidates: Candidates<'_>,
        is_imbalanced: impl Fn(usize, usize) -> bool,
        penalties: &mut Vec<f32>,
    ) -> bool {
        let (mut shortest, mut longest, mut loads) = (usize::MAX, 0, 0);
        penalties.clear();
        penalties.extend(candidates.iter().map(|worker| {
            let load = worker.load;
            (shortest, longest) = (shortest.min(load), longest.max(load));
            loads += load;
            load as f32
        }));
        let recent = |worker: &Candidate| self.recent.get(worker.slot as usize).copied();
        self.of_candidates.clear();
        self.of_candidates.extend(
            candidates
                .iter()
                .map(|worker| recent(worker).unwrap_or(0.0)),
        );
        let recent = sum(&self.of_candidates);
        let count = candidates.len() as f32;
        let load = loads as f32 / count;
        // Recent shares, whose mean is 1, weigh less while little is in flight.
        let share = tuning.recent * load.clamp(LITTLE, 1.0);
        let share = if recent > 0.0 {
            share * count / recent
        } else {
            0.0
        };
        let imbalanced = is_imbalanced(shortest, longest);
        let factor = if imbalanced { tuning.imbalance } else { 1.0 };
        let bytes = tuning.load * factor * self.mean_text();
        let per_other = 1.0 / (count - 1.0).max(1.0);
        for (penalty, recent) in penalties.iter_mut().zip(&self.of_candidates) {
            // Compared with the others' mean: of two workers, neither exceeds the mean of both more than twofold.
            let others = (loads as f32 - *penalty) * per_other + tuning.recent;
            let busy = *penalty + share * recent;
            *penalty = bytes * busy / others.max(LITTLE);
        }
        imbalanced
    }

    /// Bytes of an average prompt, of those answered recently and those waiting. A waiting prompt that comes to
    /// nothing counts no longer.
    pub fn mean_text(&self) -> f32 {
        let count = self.answered + self.waiting as f32;
        (self.answered * self.mean_answered + self.waiting_text as f32) / count.max(1.0)
    }

    /// Counts a prompt of `text` bytes as waiting for its answer.
    pub fn waits(&mut self, text: usize) {
        self.waiting += 1;
        self.waiting_text += text;
    }

    /// Ends the wait of a prompt of `text` bytes; only an answered one counts from then on.
    pub fn settled(&mut self, text: usize, is_answered: bool) {
        self.waiting = self.waiting.saturating_sub(1);
        self.waiting_text = self.waiting_text.saturating_sub(text);
        if is_answered {
            self.answered = (self.answered + 1.0).min(self.span.max(1.0));
            self.mean_answered += (text as f32 - self.mean_answered) / self.answered;
        }
    }

    /// Forgets the requests of workers that are gone.
    pub fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        for (count, slot) in self.recent.iter_mut().zip(0..) {
            if !is_there(slot) {
                *count = 0.0;
            }
        }
    }

    /// Counts a request for a worker that was among the candidates.
    pub fn count(&mut self, tuning: &Tuning, candidates: Candidates<'_>, worker: &Candidate) {
        const LARGE: f32 = 1e12;
        self.span = (tuning.memory * candidates.len() as f32).max(1.0);
        if self.unit == 0.0 {
            self.unit = 1.0;
        }
        self.unit *= 1.0 + 1.0 / self.span;
        let slot = worker.slot as usize;
        self.recent.resize(self.recent.len().max(slot + 1), 0.0);
        self.recent[slot] += self.unit;
        if self.unit > LARGE {
            self.recent.iter_mut().for_each(|count| *count /= LARGE);
            self.unit /= LARGE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fleet;

    fn penalties(balance: &mut Balance, candidates: Candidates<'_>) -> Vec<f32> {
        let mut penalties = Vec::new();
        let tuning = Tuning::default();
        balance.penalties(
            &tuning,
            candidates,
            |_, longest| longest > 2,
            &mut penalties,
        );
        penalties
    }

    fn ask(balance: &mut Balance, candidates: Candidates<'_>, worker: usize, text: usize) {
        balance.waits(text);
        balance.count(&Tuning::default(), candidates, candidates.get(worker));
        balance.settled(text, true);
    }

    #[test]
    fn the_scale_is_that_of_what_was_seen_so_far() {
        let fleet = fleet(4);
        let all = Candidates::new(&fleet);
        let mut balance = Balance::default();
        penalties(&mut balance, all);
        assert_eq!(balance.mean_text(), 0.0);
        ask(&mut balance, all, 0, 8);
        assert_eq!(balance.mean_text(), 8.0);
        // Those that wait count as they come, and leave no trace if nothing comes of them.
        (0..7).for_each(|_| balance.waits(4000));
        assert_eq!(balance.mean_text(), 3501.0);
        (0..6).for_each(|_| balance.settled(4000, false));
        assert_eq!(balance.mean_text(), 2004.0);
        balance.settled(4000, true);
        assert_eq!(balance.mean_text(), 2004.0);
        for _ in 0..1000 {
            ask(&mut balance, all, 0, 100);
        }
        assert!((100.0..102.0).contains(&balance.mean_text()));
    }

    #[test]
    fn the_busier_and_the_more_often_asked_cost_more() {
        let mut fleet = fleet(3);
        let all = Candidates::new(&fleet);
        let mut balance = Balance::default();
        assert_eq!(penalties(&mut balance, all), [0.0; 3]);
        ask(&mut balance, all, 0, 1000);
        let idle = penalties(&mut balance, all);
        assert!(idle[0] > idle[1] && idle[1] == idle[2]);
        fleet[1].load = 2;
        let busy = penalties(&mut balance, Candidates::new(&fleet));
        assert!(busy[1] > busy[2] && busy[2] == 0.0);
        fleet[1].load = 4;
        let busier = penalties(&mut balance, Candidates::new(&fleet));
        assert!(busier[1] > 2.0 * busy[1]);
    }

    #[test]
    fn old_requests_fade_and_nothing_overflows() {
        let fleet = fleet(2);
        let all = Candidates::new(&fleet);
        let mut balance = Balance::default();
        penalties(&mut balance, all);
        let tuning = Tuning {
            memory: 1.0,
            ..Tuning::default()
        };
        let mut ask = |count: usize, worker: usize, text: usize| {
            for _ in 0..count {
                balance.waits(text);
                balance.count(&tuning, all, &fleet[worker]);
                balance.settled(text, true);
            }
        };
        ask(10_000, 0, 100);
        ask(20, 1, 300);
        let now = penalties(&mut balance, all);
        assert!(now.iter().all(|cost| cost.is_finite()));
        assert!(now[1] > 100.0 * now[0], "{now:?}");
        assert!((299.0..=300.0).contains(&balance.mean_text()));
    }
}
