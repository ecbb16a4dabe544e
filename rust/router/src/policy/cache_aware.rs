use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::{Candidates, Policy, RequestKey};
use crate::config::Config;
use crate::tree::{Path, PrefixTree};
use crate::worker::Worker;

/// Sends a prompt where the longest part of it was seen before, unless the queues have drifted apart.
///
/// - Imbalanced (longest queue over `balance_abs_threshold` above and `balance_rel_threshold` times the
///   shortest): the shortest queue.
/// - More than `cache_threshold` of the prompt known: the least loaded worker among those that know most.
/// - Otherwise the prompt is cold: the worker with the smallest tree, then the least loaded, then any.
///
/// Prompts of different models are kept apart.
pub struct CacheAware {
    cache_threshold: f64,
    balance_abs_threshold: usize,
    balance_rel_threshold: f64,
    max_tree_size: usize,
    state: Mutex<State>,
    prompt_bytes: AtomicU64,
    matched_bytes: AtomicU64,
    balanced_away: AtomicU64,
}

#[derive(Default)]
struct State {
    tree: PrefixTree,
    path: Path,
}

impl CacheAware {
    pub fn new(config: &Config) -> Self {
        CacheAware {
            cache_threshold: config.cache_threshold,
            balance_abs_threshold: config.balance_abs_threshold,
            balance_rel_threshold: config.balance_rel_threshold,
            max_tree_size: config.max_tree_size,
            state: Mutex::default(),
            prompt_bytes: AtomicU64::new(0),
            matched_bytes: AtomicU64::new(0),
            balanced_away: AtomicU64::new(0),
        }
    }

    fn is_imbalanced(&self, candidates: Candidates<'_>) -> bool {
        let (shortest, longest) = candidates
            .iter()
            .fold((usize::MAX, 0), |(low, high), worker| {
                (low.min(worker.load()), high.max(worker.load()))
            });
        longest.saturating_sub(shortest) > self.balance_abs_threshold
            && longest as f64 > shortest as f64 * self.balance_rel_threshold
    }

    /// The least loaded candidate among those that know the most of the text, if that is enough of it,
    /// and how many bytes it knows.
    fn best_match<'a>(
        &self,
        tree: &PrefixTree,
        path: &Path,
        candidates: Candidates<'a>,
        len: usize,
    ) -> Option<(&'a Arc<Worker>, usize)> {
        for &(node, known) in path.iter().rev() {
            if known as f64 <= self.cache_threshold * len as f64 {
                return None;
            }
            let owners = tree.owners(node).filter_map(|id| candidates.with_id(id));
            if let Some(worker) = owners.min_by_key(|worker| worker.load()) {
                return Some((worker, known));
            }
        }
        None
    }
}

impl Policy for CacheAware {
    fn pick<'a>(&self, candidates: Candidates<'a>, request: &RequestKey<'_>) -> &'a Arc<Worker> {
        if request.text.is_empty() {
            return candidates.best_by_key(Worker::load);
        }
        let imbalanced = self.is_imbalanced(candidates);
        let mut state = self.state.lock().unwrap();
        let State { tree, path } = &mut *state;
        tree.follow(request.model, request.text, path);
        let chosen = if imbalanced {
            self.balanced_away.fetch_add(1, Relaxed);
            candidates.best_by_key(Worker::load)
        } else {
            match self.best_match(tree, path, candidates, request.text.len()) {
                Some((worker, known)) => {
                    self.matched_bytes.fetch_add(known as u64, Relaxed);
                    worker
                }
                None => candidates.best_by_key(|worker| (tree.bytes(worker.id), worker.load())),
            }
        };
        self.prompt_bytes
            .fetch_add(request.text.len() as u64, Relaxed);
        tree.insert(
            request.model,
            request.text,
            path,
            chosen.id,
            self.max_tree_size,
        );
        chosen
    }

    fn reads_request(&self) -> bool {
        true
    }

    fn maintain(&self, fleet: &[Arc<Worker>]) {
        let mut state = self.state.lock().unwrap();
        let known: Vec<u32> = state.tree.workers().collect();
        for id in known {
            let stays = fleet.iter().any(|worker| worker.id == id);
            state
                .tree
                .shrink(id, if stays { self.max_tree_size } else { 0 });
        }
    }

    fn forget(&self, worker: &Worker) {
        self.state.lock().unwrap().tree.shrink(worker.id, 0);
    }

    fn write_metrics(&self, fleet: &[Arc<Worker>], out: &mut String) {
        let state = self.state.lock().unwrap();
        out.push_str("# HELP sglang_omni_router_tree_bytes Prompt text remembered for a worker.\n");
        out.push_str("# TYPE sglang_omni_router_tree_bytes gauge\n");
        for worker in fleet {
            let bytes = state.tree.bytes(worker.id);
            let _ = writeln!(
                out,
                "sglang_omni_router_tree_bytes{{worker=\"{}\"}} {bytes}",
                worker.url
            );
        }
        for (name, kind, help, value) in [
            (
                "tree_nodes",
                "gauge",
                "Nodes of the prefix tree.",
                state.tree.nodes() as u64,
            ),
            (
                "prompt_bytes_total",
                "counter",
                "Prompt text routed by cache_aware.",
                self.prompt_bytes.load(Relaxed),
            ),
            (
                "matched_bytes_total",
                "counter",
                "Prompt text sent to a worker that knew it.",
                self.matched_bytes.load(Relaxed),
            ),
            (
                "balanced_total",
                "counter",
                "Requests sent to the shortest queue instead.",
                self.balanced_away.load(Relaxed),
            ),
        ] {
            let _ = writeln!(
                out,
                "# HELP sglang_omni_router_{name} {help}\n# TYPE sglang_omni_router_{name} {kind}\nsglang_omni_router_{name} {value}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, picks};
    use super::*;
    use crate::worker::LoadGuard;

    fn policy(change: impl FnOnce(&mut Config)) -> CacheAware {
        let mut config = Config::default();
        change(&mut config);
        CacheAware::new(&config)
    }

    #[test]
    fn a_conversation_stays_where_it_began() {
        let (policy, fleet) = (policy(|_| ()), fleet(4));
        let turns = [
            "once upon a time",
            "once upon a time there was",
            "once upon a time there was a fox",
        ];
        let picks = picks(&policy, &fleet, turns);
        assert!(picks.iter().all(|&pick| pick == picks[0]));
    }

    #[test]
    fn cold_prompts_fill_the_fleet_evenly() {
        let (policy, fleet) = (policy(|_| ()), fleet(4));
        let texts: Vec<String> = (0..40)
            .map(|index| format!("{index:02} {}", "x".repeat(50)))
            .collect();
        let picks = picks(&policy, &fleet, texts.iter().map(String::as_str));
        for worker in 0..4 {
            assert_eq!(picks.iter().filter(|&&pick| pick == worker).count(), 10);
        }
    }

    #[test]
    fn a_match_at_the_threshold_is_still_cold() {
        let (policy, fleet) = (policy(|c| c.cache_threshold = 0.5), fleet(2));
        let first = picks(&policy, &fleet, ["aaaa"])[0];
        assert_eq!(picks(&policy, &fleet, ["aaaabbbb"]), [1 - first]);
        assert_eq!(picks(&policy, &fleet, ["aaaaccc"]).len(), 1);
    }

    #[test]
    fn drifted_queues_send_even_known_prompts_to_the_shortest() {
        let (policy, fleet) = (policy(|c| c.balance_abs_threshold = 2), fleet(2));
        let first = picks(&policy, &fleet, ["a known prompt"])[0];
        let mut busy: Vec<LoadGuard> = (0..2)
            .map(|_| LoadGuard::new(fleet[first].clone()))
            .collect();
        assert_eq!(picks(&policy, &fleet, ["a known prompt"]), [first]);
        busy.push(LoadGuard::new(fleet[first].clone()));
        assert_eq!(picks(&policy, &fleet, ["a known prompt"]), [1 - first]);
    }

    #[test]
    fn a_long_queue_is_balanced_only_past_the_relative_threshold() {
        let (policy, fleet) = (
            policy(|c| (c.balance_abs_threshold, c.balance_rel_threshold) = (1, 3.0)),
            fleet(2),
        );
        let first = picks(&policy, &fleet, ["a known prompt"])[0];
        let _queues: Vec<LoadGuard> = [first, first, first, first, 1 - first, 1 - first]
            .map(|w| LoadGuard::new(fleet[w].clone()))
            .into();
        assert_eq!(picks(&policy, &fleet, ["a known prompt"]), [first]);
    }

    #[test]
    fn models_are_kept_apart() {
        let (policy, fleet) = (policy(|_| ()), fleet(2));
        let all = [0, 1];
        let pick = |model: &[u8]| {
            let request = RequestKey {
                text: b"the same prompt",
                model,
                session: b"",
            };
            policy.pick(Candidates::new(&fleet, &all), &request).id
        };
        assert_ne!(pick(b"one"), pick(b"two"));
        assert_eq!(pick(b"one"), pick(b"one"));
    }

    #[test]
    fn removed_workers_are_forgotten_and_trees_bounded() {
        let (policy, fleet) = (policy(|c| c.max_tree_size = 100), fleet(2));
        let texts: Vec<String> = (0..50)
            .map(|index| format!("{index:02} {}", "y".repeat(30)))
            .collect();
        picks(&policy, &fleet, texts.iter().map(String::as_str));
        let bytes = |worker: usize| policy.state.lock().unwrap().tree.bytes(fleet[worker].id);
        assert!(bytes(0) <= 100 && bytes(1) <= 100 && bytes(0) > 0 && bytes(1) > 0);
        policy.maintain(&fleet[..1]);
        assert!(bytes(0) > 0 && bytes(1) == 0);
    }
}
