//! How much busier a worker is than the others, in bytes of prompt text that it would be worth computing
//! again elsewhere.

use crate::policy::Candidates;

/// How much the parts of a decision weigh. The defaults were chosen with `benches/router_sim`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// What a worker with as much load as the others costs, in mean prompts.
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
    /// Whether what workers say they had cached corrects the tree.
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

/// Who got how many of the recent requests, and how long prompts are.
#[derive(Default)]
pub struct Balance {
    /// By worker id. A request counts for less the longer ago it was: instead of shrinking all that was
    /// counted, `unit`, which the next one counts for, grows.
    recent: Vec<f32>,
    unit: f32,
    mean_text: f32,
}

/// The least that recent shares matter: enough to spread what would otherwise be equal.
const LITTLE: f32 = 0.01;

impl Balance {
    /// Bytes that each worker's load is worth, one entry a candidate. `is_imbalanced` is told the shortest
    /// and the longest queue.
    pub fn penalties(
        &mut self,
        tuning: &Tuning,
        candidates: Candidates<'_>,
        is_imbalanced: impl Fn(usize, usize) -> bool,
        penalties: &mut Vec<f32>,
    ) -> bool {
        let ids = candidates.last_id() as usize + 1;
        self.recent.resize(self.recent.len().max(ids), 0.0);
        let (mut shortest, mut longest) = (usize::MAX, 0);
        let (mut loads, mut recent) = (0, 0.0);
        penalties.clear();
        penalties.extend(candidates.iter().map(|worker| {
            let load = worker.load();
            (shortest, longest) = (shortest.min(load), longest.max(load));
            loads += load;
            recent += self.recent[worker.id as usize];
            load as f32
        }));
        let count = candidates.len() as f32;
        let load = loads as f32 / count;
        // Recent shares, whose mean is 1, matter as far as there is anything to balance.
        let share = tuning.recent * load.clamp(LITTLE, 1.0);
        let share = if recent > 0.0 {
            share * count / recent
        } else {
            0.0
        };
        let imbalanced = is_imbalanced(shortest, longest);
        let factor = if imbalanced { tuning.imbalance } else { 1.0 };
        let bytes = tuning.load * factor * self.mean_text;
        for (penalty, worker) in penalties.iter_mut().zip(candidates.iter()) {
            // Against the others, not against all: of two workers one is never more than twice the mean.
            let others = (loads as f32 - *penalty) / (count - 1.0).max(1.0) + tuning.recent;
            let busy = *penalty + share * self.recent[worker.id as usize];
            *penalty = bytes * busy / others.max(LITTLE);
        }
        imbalanced
    }

    /// Bytes of an average prompt.
    pub fn mean_text(&self) -> f32 {
        self.mean_text
    }

    /// Counts a request of `text` bytes for a worker that was among the candidates.
    pub fn count(&mut self, tuning: &Tuning, candidates: Candidates<'_>, worker: u32, text: usize) {
        const LARGE: f32 = 1e12;
        let span = (tuning.memory * candidates.len() as f32).max(1.0);
        if self.unit == 0.0 {
            (self.unit, self.mean_text) = (1.0, text as f32);
        }
        self.mean_text += (text as f32 - self.mean_text) / span;
        self.unit *= 1.0 + 1.0 / span;
        self.recent[worker as usize] += self.unit;
        if self.unit > LARGE {
            self.recent.iter_mut().for_each(|count| *count /= LARGE);
            self.unit /= LARGE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::worker::LoadGuard;
    use crate::policy::testing::fleet;

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

    #[test]
    fn the_busier_and_the_more_often_asked_cost_more() {
        let fleet = fleet(3);
        let all = Candidates::new(&fleet, &[0, 1, 2]);
        let mut balance = Balance::default();
        assert_eq!(penalties(&mut balance, all), [0.0; 3]);
        balance.count(&Tuning::default(), all, fleet[0].id, 1000);
        let idle = penalties(&mut balance, all);
        assert!(idle[0] > idle[1] && idle[1] == idle[2]);
        let _busy = [1, 1].map(|at: usize| LoadGuard::new(fleet[at].clone()));
        let busy = penalties(&mut balance, all);
        assert!(busy[1] > busy[2] && busy[2] == 0.0);
        let _busier = [1, 1].map(|at: usize| LoadGuard::new(fleet[at].clone()));
        assert!(penalties(&mut balance, all)[1] > 2.0 * busy[1]);
    }

    #[test]
    fn old_requests_fade_and_nothing_overflows() {
        let fleet = fleet(2);
        let all = Candidates::new(&fleet, &[0, 1]);
        let mut balance = Balance::default();
        penalties(&mut balance, all);
        let tuning = Tuning {
            memory: 1.0,
            ..Tuning::default()
        };
        for _ in 0..10_000 {
            balance.count(&tuning, all, fleet[0].id, 100);
        }
        for _ in 0..20 {
            balance.count(&tuning, all, fleet[1].id, 300);
        }
        let now = penalties(&mut balance, all);
        assert!(now.iter().all(|cost| cost.is_finite()));
        assert!(now[1] > 100.0 * now[0], "{now:?}");
        assert!((299.0..=300.0).contains(&balance.mean_text()));
    }
}
