//! `cache_aware`: a prompt goes to the worker that has most of it cached, unless that worker is too busy.

mod balance;
mod metrics;
mod suspects;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::thread;

pub use balance::Tuning;

use self::balance::Balance;
use self::metrics::Counters;
use self::suspects::Suspects;
use crate::blocks::event::Coverage;
use crate::blocks::index::BlockIndex;
use crate::blocks::matches::Matches;
use crate::costs::{cheapest, sum};
use crate::tree::{Copied, Path, PrefixTree, Stamp, TextLimits};
use crate::{
    Candidate, Candidates, Decision, Metric, Policy, PolicySettings, Receipt, RequestKey, Usage,
};

/// Prompts on their way may take this part of `max_tree_size` in addition: one in four.
const PENDING_PART: usize = 4;

/// Memory that the trees of all workers share, prompts on their way aside. One worker may always have `max_tree_size`.
const ALL_TREES: usize = 1 << 30;

/// So many bytes are not copied under the lock.
const LARGE: usize = 32 << 10;

/// How many nodes are forgotten in one hold of the lock: a fraction of a millisecond.
const NODES_A_HOLD: usize = 128;

/// The least part of a prompt that a worker must have known for its usage to show a loss. Caches hold whole
/// blocks, some of a hundred tokens and more: of a shorter part, nothing may be cached at all.
const TELLING_BYTES: u32 = 1024;
const TELLING_TOKENS: f64 = 256.0;

/// Each worker costs the bytes of the prompt that it has not seen, and more the busier it is; the cheapest one
/// gets the request. It counts as having seen the prompt at once, so that concurrent requests of one prefix stay
/// together, but only a prompt that it begins to answer is kept: one that it refuses or fails at, or whose client
/// leaves, is forgotten.
///
/// - Load counts continuously, and `Tuning::imbalance` times as much while the longest queue is more than
///   `balance_abs_threshold` above and `balance_rel_threshold` times the shortest.
/// - A prompt of which no worker knows more than `cache_threshold` also avoids workers with large trees.
/// - The `cached_tokens` that workers report correct the tree.
///
/// Prompts of different models are kept apart.
pub struct CacheAware {
    cache_threshold: f64,
    balance_abs_threshold: usize,
    balance_rel_threshold: f64,
    /// Bytes of memory for one worker's tree, and for all together.
    max_tree_size: usize,
    max_all_trees: usize,
    tuning: Tuning,
    state: Mutex<State>,
    /// What workers publish of their caches.
    blocks: BlockIndex,
    counters: Counters,
}

thread_local! {
    /// Memory for searches of `blocks`, which are made outside the lock of `state`.
    static MATCHES: RefCell<Matches> = RefCell::default();
}

#[derive(Default)]
struct State {
    tree: PrefixTree,
    balance: Balance,
    suspects: Suspects,
    /// How many workers the fleet has, as far as is known.
    workers: usize,
    path: Path,
    /// Each candidate's cost in bytes, where one that knows nothing of the text has 0 if nothing else counts against it.
    costs: Vec<f32>,
    /// Bytes of the text that each worker knows, by slot; one beyond the end knows nothing.
    known: Vec<u32>,
    /// Bytes of the text that are on their way to each worker in other prompts, by slot.
    on_their_way: Vec<u32>,
    /// Bytes of each candidate's tree.
    sizes: Vec<f32>,
}

/// How much of a text each worker has by its events.
struct Exact<'a> {
    matches: &'a Matches,
    bytes_a_token: f64,
}

impl Exact<'_> {
    fn bytes(&self, tokens: u32) -> u32 {
        (f64::from(tokens) * self.bytes_a_token) as u32
    }

    /// True if all that the worker has cached is known.
    fn is_whole(&self, slot: u32) -> bool {
        self.matches.of(slot).0 == Coverage::Whole
    }
}

impl CacheAware {
    pub fn new(settings: &PolicySettings) -> Self {
        CacheAware::tuned(settings, Tuning::default())
    }

    pub fn tuned(settings: &PolicySettings, tuning: Tuning) -> Self {
        CacheAware {
            cache_threshold: settings.cache_threshold,
            balance_abs_threshold: settings.balance_abs_threshold,
            balance_rel_threshold: settings.balance_rel_threshold,
            max_tree_size: settings.max_tree_size,
            max_all_trees: settings.max_tree_size.max(ALL_TREES),
            tuning,
            state: Mutex::default(),
            blocks: BlockIndex::default(),
            counters: Counters::default(),
        }
    }

    /// The state. If a thread panicked while it changed it, the state is discarded and learning starts again.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            *state = State::default();
            self.state.clear_poison();
            state
        })
    }

    /// The state, whose `path` follows the text. A large part that no worker knows is copied while others may decide: a
    /// megabyte takes a good part of a millisecond.
    fn follow(&self, model: &[u8], text: &[u8]) -> (MutexGuard<'_, State>, Option<Copied>) {
        let mut copied = None;
        loop {
            let mut guard = self.state();
            let state = &mut *guard;
            state.tree.follow(model, text, &mut state.path);
            let from = state.path.last().map_or(0, |&(_, reached)| reached);
            if copied.is_some() || text.len() - from < LARGE {
                return (guard, copied);
            }
            drop(guard);
            let text = text[from..].into();
            copied = Some(Copied { from, text });
        }
    }

    /// The limits of each of so many workers.
    fn limits(&self, workers: usize) -> TextLimits {
        let kept = self.max_tree_size.min(self.max_all_trees / workers.max(1));
        TextLimits {
            kept,
            pending: kept / PENDING_PART,
        }
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
    /// Finds how many bytes each candidate knows of the text that `path` follows, takes them off its cost, and returns the
    /// most. If `exact` is there, it counts for the workers that it covers, with the prompts that are on their way to them.
    fn find_known(&mut self, candidates: Candidates<'_>, exact: Option<&Exact<'_>>) -> usize {
        self.known.clear();
        self.known.resize(self.tree.slots(), 0);
        // A worker that owns a node owns those above it: one of the owners is new only if there are more of them. A root
        // has no text to know.
        let mut owners = 0;
        for &(node, reached) in self.path.iter().skip(1).rev() {
            let here = self.tree.owners(node);
            if here.len() > owners {
                owners = here.len();
                for worker in here {
                    let known = &mut self.known[worker as usize];
                    *known = (*known).max(reached as u32);
                }
            }
        }
        if let Some(exact) = exact {
            self.add_exact(candidates, exact);
        } else if owners == 0 {
            return 0;
        }
        let mut most = 0;
        for (cost, worker) in self.costs.iter_mut().zip(candidates.iter()) {
            let known = self.known.get(worker.slot as usize).copied().unwrap_or(0);
            *cost -= known as f32;
            most = most.max(known);
        }
        most as usize
    }

    /// Replaces what the tree says of the workers whose events come by what these say.
    fn add_exact(&mut self, candidates: Candidates<'_>, exact: &Exact<'_>) {
        self.on_their_way.clear();
        self.on_their_way.resize(self.known.len(), 0);
        for &(node, reached) in self.path.iter().skip(1) {
            for worker in self.tree.claimants(node) {
                self.on_their_way[worker as usize] = reached as u32;
            }
        }
        for worker in candidates.iter() {
            let slot = worker.slot as usize;
            let (coverage, tokens) = exact.matches.of(worker.slot);
            let cached = exact.bytes(tokens);
            if self.known.len() <= slot && cached > 0 {
                self.known.resize(slot + 1, 0);
                self.on_their_way.resize(slot + 1, 0);
            }
            let Some(known) = self.known.get_mut(slot) else {
                continue;
            };
            // Of a part, hardly anything can be used: most blocks follow others that are not known.
            if coverage == Coverage::Whole {
                *known = cached.max(self.on_their_way[slot]);
            }
        }
    }

    /// Adds to each candidate's cost the size of its tree, weighted for a cold prompt.
    fn add_tree_size(&mut self, candidates: Candidates<'_>, weight: f32) {
        self.sizes.clear();
        self.sizes.extend(
            candidates
                .iter()
                .map(|worker| self.tree.text(worker.slot) as f32),
        );
        let mean = (sum(&self.sizes) / candidates.len() as f32).max(1.0);
        let per_byte = weight * self.balance.mean_text() / mean;
        for (cost, size) in self.costs.iter_mut().zip(&self.sizes) {
            *cost += per_byte * size;
        }
    }
}

impl Policy for CacheAware {
    fn pick(&self, candidates: Candidates<'_>, request: &RequestKey<'_>) -> Decision {
        let RequestKey { text, tokens, .. } = *request;
        if text.is_empty() {
            return candidates.least_loaded().into();
        }
        if tokens.is_empty() || self.blocks.covered() == 0 {
            return self.pick_known(candidates, request, None);
        }
        MATCHES.with_borrow_mut(|matches| {
            let adapter = self.blocks.adapter_in(request.model);
            matches.find(&self.blocks, tokens, adapter);
            self.counters.exact.fetch_add(1, Relaxed);
            let bytes_a_token = text.len() as f64 / tokens.len() as f64;
            let exact = Exact {
                matches,
                bytes_a_token,
            };
            self.pick_known(candidates, request, Some(&exact))
        })
    }

    fn kept(&self, receipt: Receipt) {
        self.settle(receipt, true);
    }

    fn withdrawn(&self, receipt: Receipt) {
        self.settle(receipt, false);
    }

    fn answered(&self, receipt: Receipt, usage: Usage) {
        self.counters.answered(usage);
        let Some(seen) = receipt.seen.filter(|_| is_telling(receipt, usage)) else {
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
        let slot = receipt.slot;
        let now = tree.now(slot);
        if is_cached {
            suspects.hit(slot, now, seen);
        } else if suspects.miss(slot, now, seen) {
            self.counters.corrections.fetch_add(1, Relaxed);
            tree.forget_unused_since(slot, seen);
        }
    }

    fn reads_request(&self) -> bool {
        true
    }

    fn reads_usage(&self) -> bool {
        self.tuning.correction
    }

    fn maintain(&self, slots: &[u32]) {
        let mut state = self.state();
        let is_there = |slot: u32| slots.contains(&slot);
        state.balance.retain(is_there);
        state.workers = slots.len();
        let limits = self.limits(slots.len());
        let known: Vec<u32> = state.tree.workers().collect();
        drop(state);
        for slot in known {
            let limit = if is_there(slot) { limits.kept } else { 0 };
            self.shrink(slot, limit);
        }
        self.blocks.tidy();
    }

    fn forget(&self, slot: u32) {
        self.shrink(slot, 0);
        self.state().suspects.forget(slot);
    }

    fn blocks(&self) -> Option<&BlockIndex> {
        Some(&self.blocks)
    }

    fn metrics(&self) -> Vec<Metric> {
        let blocks = self.counters.with_blocks(&self.blocks);
        let mut metrics = self.counters.with_tree(&self.state().tree);
        metrics.extend(blocks);
        metrics
    }
}

impl CacheAware {
    /// Chooses by the tree, and by the workers' events where `exact` has them.
    fn pick_known(
        &self,
        candidates: Candidates<'_>,
        request: &RequestKey<'_>,
        exact: Option<&Exact<'_>>,
    ) -> Decision {
        let RequestKey { text, model, .. } = *request;
        let (mut state, copied) = self.follow(model, text);
        let state = &mut *state;
        state.balance.waits(text.len());
        state.workers = state.workers.max(candidates.len());
        let is_imbalanced = state.balance.penalties(
            &self.tuning,
            candidates,
            |shortest, longest| self.is_imbalanced(shortest, longest),
            &mut state.costs,
        );
        let most = state.find_known(candidates, exact);
        let is_warm = self.is_enough(most, text.len());
        if !is_warm {
            state.add_tree_size(candidates, self.tuning.tree);
        }
        let index = cheapest(&state.costs);
        let worker = candidates.get(index);

        let known = state.known.get(worker.slot as usize).copied().unwrap_or(0) as usize;
        self.counters
            .picked(text.len(), known, is_imbalanced, is_warm && known < most);
        state.balance.count(&self.tuning, candidates, worker);
        let is_exact = exact.is_some_and(|exact| exact.is_whole(worker.slot));
        let seen = match is_exact {
            true => None,
            false => self.expected(state, worker, known, request),
        };
        let limits = self.limits(state.workers);
        let claim = state
            .tree
            .claim(model, text, copied, &state.path, worker.slot, limits);
        let receipt = Receipt {
            claim: Some(claim),
            slot: worker.slot,
            text: text.len() as u32,
            known: known as u32,
            seen,
        };
        Decision { index, receipt }
    }

    /// Forgets a worker's text down to the limit, a little in each hold of the lock: requests choose their workers in
    /// between.
    fn shrink(&self, slot: u32, limit: usize) {
        while !self.state().tree.shrink_some(slot, limit, NODES_A_HOLD) {
            thread::yield_now();
        }
    }

    fn settle(&self, receipt: Receipt, is_answered: bool) {
        let Some(claim) = receipt.claim else {
            return;
        };
        let mut state = self.state();
        state.balance.settled(receipt.text as usize, is_answered);
        match is_answered {
            true => {
                let limits = self.limits(state.workers);
                state.tree.keep(claim, limits);
            }
            false => state.tree.withdraw(claim),
        }
    }

    /// When the worker last saw the text that it is expected to have cached. None if it knows too little, if the
    /// usage is not comparable, or if the request that brought the text may still be running.
    fn expected(
        &self,
        state: &State,
        worker: &Candidate,
        known: usize,
        request: &RequestKey<'_>,
    ) -> Option<Stamp> {
        if request.is_incomparable || known == 0 || !self.is_enough(known, request.text.len()) {
            return None;
        }
        let deepest = state.path.partition_point(|&(_, reached)| reached < known);
        let used = state.tree.used(state.path[deepest].0, worker.slot)?;
        let is_done = state.tree.now(worker.slot).since(used) as usize > worker.load;
        is_done.then_some(used)
    }
}

/// Whether the worker knew enough of the prompt for its usage to show a loss.
fn is_telling(receipt: Receipt, usage: Usage) -> bool {
    let share = f64::from(receipt.known) / f64::from(receipt.text);
    receipt.known >= TELLING_BYTES && share * usage.prompt_tokens as f64 >= TELLING_TOKENS
}
