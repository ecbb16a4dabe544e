use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::prometheus::head;
use crate::fleet::worker::Worker;
use crate::policy::Usage;
use crate::policy::tree::PrefixTree;

#[derive(Default)]
pub struct Counters {
    prompt_bytes: AtomicU64,
    matched_bytes: AtomicU64,
    imbalanced: AtomicU64,
    replicated: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    pub corrections: AtomicU64,
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

    pub fn write(
        &self,
        tree: &PrefixTree,
        fleet: &[Arc<Worker>],
        sees_urls: bool,
        out: &mut String,
    ) {
        let mut gauge = |metric: &str, help: &str, bytes: &dyn Fn(u32) -> usize| {
            head(out, metric, "gauge", help);
            for worker in fleet {
                let (name, bytes) = (worker.name(sees_urls), bytes(worker.slot()));
                let _ = writeln!(
                    out,
                    "sglang_omni_router_{metric}{{worker=\"{name}\"}} {bytes}"
                );
            }
        };
        gauge(
            "tree_bytes",
            "Memory of the prompt text that is remembered for a worker.",
            &|worker| tree.bytes(worker),
        );
        gauge(
            "tree_pending_bytes",
            "The same of prompts that are on their way to it.",
            &|worker| tree.pending(worker),
        );
        head(out, "tree_nodes", "gauge", "Nodes of the prefix tree.");
        let _ = writeln!(out, "sglang_omni_router_tree_nodes {}", tree.nodes());
        for (name, help, count) in [
            (
                "prompt_bytes_total",
                "Prompt text routed by cache_aware.",
                &self.prompt_bytes,
            ),
            (
                "matched_bytes_total",
                "Prompt text sent to a worker that had seen it.",
                &self.matched_bytes,
            ),
            (
                "balanced_total",
                "Requests routed while the queues were imbalanced.",
                &self.imbalanced,
            ),
            (
                "replicated_total",
                "Known prompts sent to a worker that had seen less of them, for its load.",
                &self.replicated,
            ),
            (
                "prompt_tokens_total",
                "Prompt tokens, where workers reported how many they had cached.",
                &self.prompt_tokens,
            ),
            (
                "cached_tokens_total",
                "Prompt tokens that workers reported as cached.",
                &self.cached_tokens,
            ),
            (
                "tree_corrections_total",
                "Times the tree forgot what a worker no longer had.",
                &self.corrections,
            ),
        ] {
            head(out, name, "counter", help);
            let _ = writeln!(out, "sglang_omni_router_{name} {}", count.load(Relaxed));
        }
    }
}
