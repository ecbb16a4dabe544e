//! Prompts go to the worker that has the least left to compute of them, unless others wait for less.

mod balance;
mod metrics;
mod suspects;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

pub use balance::Tuning;

use self::balance::Balance;
use self::metrics::Counters;
use self::suspects::Suspects;
use super::{Candidates, Decision, Policy, Receipt, RequestKey, Usage};
use crate::config::Config;
use crate::fleet::worker::Worker;
use crate::policy::tree::{Path, PrefixTree};

/// Each worker costs the bytes of the prompt that it has not seen, and more the busier it is; the cheapest
/// gets the request, and is known from then on to have seen the prompt.
///
/// - Load counts continuously, and `Tuning::imbalance` times as much while the longest queue is more than
///   `balance_abs_threshold` above and `balance_rel_threshold` times the shortest.
/// - A prompt of which nobody knows more than `cache_threshold` also avoids workers with large trees.
/// - What workers report of their caches corrects the tree.
///
/// Prompts of different models are kept apart.
pub struct CacheAware {
    cache_threshold: f64,
    balance_abs_threshold: usize,
    balance_rel_threshold: f64,
    max_tree_size: usize,
    tuning: Tuning,
    state: Mutex<State>,
    counters: Counters,
}

#[derive(Default)]
struct State {
    tree: PrefixTree,
    balance: Balance,
    suspects: Suspects,
    /// Bytes of the text in hand that a worker knows, by worker id; right for candidates only.
    known: Vec<usize>,
    path: Path,
    costs: Vec<f32>,
}

impl CacheAware {
    pub fn new(config: &Config) -> Self {
        CacheAware::tuned(config, Tuning::default())
    }

    pub fn tuned(config: &Config, tuning: Tuning) -> Self {
        CacheAware {
            cache_threshold: config.cache_threshold,
            balance_abs_threshold: config.balance_abs_threshold,
            balance_rel_threshold: config.balance_rel_threshold,
            max_tree_size: config.max_tree_size,
            tuning,
            state: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// What was half changed when a thread panicked is not looked at again: a router goes on with what it
    /// learns from now on.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            *state = State::default();
            self.state.clear_poison();
            state
        })
    }

    fn is_imbalanced(&self, shortest: usize, longest: usize) -> bool {
        longest - shortest > self.balance_abs_threshold
            && longest as f64 > shortest as f64 * self.balance_rel_threshold
    }

    fn is_enough(&self, known: usize, text: usize) -> bool {
        known as f64 > self.cache_threshold * text as f64
    }
}

impl State {
    /// Notes how many bytes each candidate knows of the text that `path` follows, and returns the most.
    fn find_known(&mut self, candidates: Candidates<'_>) -> usize {
        let ids = self
            .tree
            .worker_ids()
            .max(candidates.last_id() as usize + 1);
        self.known.resize(self.known.len().max(ids), 0);
        for worker in candidates.iter() {
            self.known[worker.id as usize] = 0;
        }
        // Who owns a node owns those above it: only where there are more owners is one of them new.
        let mut owners = 0;
        for &(node, reached) in self.path.iter().rev() {
            let here = self.tree.owners(node);
            if here.len() > owners {
                owners = here.len();
                for worker in here {
                    let known = &mut self.known[worker as usize];
                    if *known == 0 {
                        *known = reached;
                    }
                }
            }
        }
        let known = candidates
            .iter()
            .map(|worker| self.known[worker.id as usize]);
        known.max().unwrap_or(0)
    }

    /// Adds to each candidate's cost what it would have to compute.
    fn add_missing(&mut self, candidates: Candidates<'_>, text: usize) {
        for (cost, worker) in self.costs.iter_mut().zip(candidates.iter()) {
            *cost += (text - self.known[worker.id as usize]) as f32;
        }
    }

    /// Adds to each candidate's cost what its tree's size is worth to a cold prompt.
    fn add_tree_size(&mut self, candidates: Candidates<'_>, weight: f32) {
        let bytes = |worker: &Worker| self.tree.bytes(worker.id) as f32;
        let all: f32 = candidates.iter().map(|worker| bytes(worker)).sum();
        let mean = (all / candidates.len() as f32).max(1.0);
        let per_byte = weight * self.balance.mean_text() / mean;
        for (cost, worker) in self.costs.iter_mut().zip(candidates.iter()) {
            *cost += per_byte * bytes(worker);
        }
    }
}

impl Policy for CacheAware {
    fn pick<'a>(&self, candidates: Candidates<'a>, request: &RequestKey<'_>) -> Decision<'a> {
        let RequestKey { text, model, .. } = *request;
        if text.is_empty() {
            return candidates.best_by_key(Worker::load).into();
        }
        let mut state = self.state();
        let state = &mut *state;
        let is_imbalanced = state.balance.penalties(
            &self.tuning,
            candidates,
            |shortest, longest| self.is_imbalanced(shortest, longest),
            &mut state.costs,
        );
        state.tree.follow(model, text, &mut state.path);
        let most = state.find_known(candidates);
        let is_warm = self.is_enough(most, text.len());
        state.add_missing(candidates, text.len());
        if !is_warm {
            state.add_tree_size(candidates, self.tuning.tree);
        }
        let worker = candidates.least(&state.costs);

        let known = state.known[worker.id as usize];
        self.counters
            .picked(text.len(), known, is_imbalanced, is_warm && known < most);
        let receipt = self.receipt(state, worker, known, request);
        state
            .balance
            .count(&self.tuning, candidates, worker.id, text.len());
        let limit = self.max_tree_size;
        state
            .tree
            .insert(model, text, &state.path, worker.id, limit);
        Decision { worker, receipt }
    }

    fn answered(&self, worker: &Worker, receipt: Receipt, usage: Usage) {
        self.counters.answered(usage);
        let Some(seen) = receipt.seen else {
            return;
        };
        let Usage {
            prompt_tokens,
            cached_tokens,
        } = usage;
        let is_cached = 2.0 * cached_tokens as f64 * f64::from(receipt.text)
            >= f64::from(receipt.known) * prompt_tokens as f64;
        let mut state = self.state();
        let State { tree, suspects, .. } = &mut *state;
        let now = tree.now(worker.id);
        if is_cached {
            suspects.hit(worker.id, now, seen);
        } else if suspects.miss(worker.id, now, seen) {
            self.counters.corrections.fetch_add(1, Relaxed);
            tree.forget_unused_since(worker.id, seen);
        }
    }

    fn reads_request(&self) -> bool {
        true
    }

    fn reads_usage(&self) -> bool {
        self.tuning.correction
    }

    fn maintain(&self, fleet: &[Arc<Worker>]) {
        let mut state = self.state();
        let known: Vec<u32> = state.tree.workers().collect();
        for id in known {
            let stays = fleet.iter().any(|worker| worker.id == id);
            let limit = if stays { self.max_tree_size } else { 0 };
            state.tree.shrink(id, limit);
        }
    }

    fn forget(&self, worker: &Worker) {
        self.state().tree.shrink(worker.id, 0);
    }

    fn write_metrics(&self, fleet: &[Arc<Worker>], sees_urls: bool, out: &mut String) {
        let state = self.state();
        self.counters.write(&state.tree, fleet, sees_urls, out);
    }
}

impl CacheAware {
    /// What the worker is expected to have cached: nothing where too little is known or media make bytes a
    /// bad measure, and nothing where the request that brought it there may still be running.
    fn receipt(
        &self,
        state: &State,
        worker: &Worker,
        known: usize,
        request: &RequestKey<'_>,
    ) -> Receipt {
        let text = request.text.len();
        let is_sure = self.is_enough(known, text) && !request.has_media;
        let seen = || {
            let deepest = state.path.partition_point(|&(_, reached)| reached < known);
            let used = state.tree.used(state.path[deepest].0, worker.id)?;
            let is_done = state.tree.now(worker.id).since(used) as usize > worker.load();
            is_done.then_some(used)
        };
        Receipt {
            text: text as u32,
            known: known as u32,
            seen: is_sure.then(seen).flatten(),
        }
    }
}
