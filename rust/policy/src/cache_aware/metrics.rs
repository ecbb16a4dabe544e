//! The counters of `cache_aware`, and its metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::blocks::index::BlockIndex;
use crate::tree::PrefixTree;
use crate::{Metric, MetricValue, Usage};

#[derive(Default)]
pub struct Counters {
    prompt_bytes: AtomicU64,
    matched_bytes: AtomicU64,
    imbalanced: AtomicU64,
    replicated: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    pub corrections: AtomicU64,
    pub exact: AtomicU64,
}

impl Counters {
    pub fn picked(&self, text: usize, known: usize, is_imbalanced: bool, is_replicated: bool) {
        self.prompt_bytes.fetch_add(text as u64, Relaxed);
        self.matched_bytes.fetch_add(known as u64, Relaxed);
        if is_imbalanced {
            self.imbalanced.fetch_add(1, Relaxed);
        }
        if is_replicated {
            self.replicated.fetch_add(1, Relaxed);
        }
    }

    pub fn answered(&self, usage: Usage) {
        self.prompt_tokens.fetch_add(usage.prompt_tokens, Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens, Relaxed);
    }

    /// The policy's metrics: these counters and the tree's sizes.
    pub fn with_tree(&self, tree: &PrefixTree) -> Vec<Metric> {
        let by_slot = |bytes: fn(&PrefixTree, u32) -> usize| {
            let slots = 0..tree.slots() as u32;
            MetricValue::GaugeBySlot(slots.map(|slot| bytes(tree, slot) as u64).collect())
        };
        vec![
            metric(
                "tree_bytes",
                "Memory of the prompt text that is remembered for a worker.",
                by_slot(PrefixTree::bytes),
            ),
            metric(
                "tree_pending_bytes",
                "The same of prompts that are on their way to it.",
                by_slot(PrefixTree::pending),
            ),
            metric(
                "tree_nodes",
                "Nodes of the prefix tree.",
                MetricValue::Gauge(tree.nodes() as u64),
            ),
            metric(
                "prompt_bytes_total",
                "Prompt text routed by cache_aware.",
                count(&self.prompt_bytes),
            ),
            metric(
                "matched_bytes_total",
                "Prompt text sent to a worker that had seen it.",
                count(&self.matched_bytes),
            ),
            metric(
                "balanced_total",
                "Requests routed while the queues were imbalanced.",
                count(&self.imbalanced),
            ),
            metric(
                "replicated_total",
                "Known prompts sent to a worker that had seen less of them, for its load.",
                count(&self.replicated),
            ),
            metric(
                "prompt_tokens_total",
                "Prompt tokens, where workers reported how many they had cached.",
                count(&self.prompt_tokens),
            ),
            metric(
                "cached_tokens_total",
                "Prompt tokens that workers reported as cached.",
                count(&self.cached_tokens),
            ),
            metric(
                "tree_corrections_total",
                "Times the tree forgot what a worker no longer had.",
                count(&self.corrections),
            ),
        ]
    }

    /// The metrics of what workers publish.
    pub fn with_blocks(&self, blocks: &BlockIndex) -> Vec<Metric> {
        let counts = &blocks.counts;
        vec![
            metric(
                "cache_blocks",
                "Blocks of a worker's cache that are known by its events.",
                MetricValue::GaugeBySlot(blocks.blocks()),
            ),
            metric(
                "cache_events_total",
                "Events that workers published of their caches.",
                count(&counts.received),
            ),
            metric(
                "cache_batches_missed_total",
                "Batches of events that got lost on the way, and could not be had again.",
                count(&counts.missed),
            ),
            metric(
                "caches_forgotten_total",
                "Times that what is known of a cache was forgotten, since its events had ended or were incomplete.",
                count(&counts.forgotten),
            ),
            metric(
                "cache_blocks_refused_total",
                "Blocks in events that were not remembered, for want of room.",
                count(&counts.refused),
            ),
            metric(
                "cache_blocks_orphaned_total",
                "Blocks in events that follow a block that is not known.",
                count(&counts.orphaned),
            ),
            metric(
                "exact_total",
                "Requests routed by what workers had published of their caches.",
                count(&self.exact),
            ),
        ]
    }
}

fn metric(name: &'static str, help: &'static str, value: MetricValue) -> Metric {
    Metric { name, help, value }
}

fn count(counter: &AtomicU64) -> MetricValue {
    MetricValue::Counter(counter.load(Relaxed))
}
