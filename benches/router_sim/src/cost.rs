//! Measures the time of a decision of `cache_aware` as its tree grows.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use serde_json::{Value, json};
use sglang_omni_policy::{
    Candidate, Metric, MetricValue, Policy, PolicySettings, RequestKey, Usage, build,
};

const SYSTEM_PROMPTS: usize = 64;
const CONVERSATIONS: usize = 1000;
/// Turns of a prompt if it were made of turns only.
const TURNS: usize = 64;

/// Conversations under shared system prompts: prompts of about `bytes` bytes that grow turn by turn.
struct Talk {
    rng: fastrand::Rng,
    systems: Vec<Vec<u8>>,
    conversations: Vec<Vec<u8>>,
    bytes: usize,
}

impl Talk {
    fn new(seed: u64, bytes: usize) -> Talk {
        // The same for every seed: threads share the system prompts, and not the conversations.
        let mut shared = fastrand::Rng::with_seed(0);
        let systems: Vec<Vec<u8>> = (0..SYSTEM_PROMPTS)
            .map(|_| letters(&mut shared, bytes / 4))
            .collect();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut conversations: Vec<Vec<u8>> = (0..CONVERSATIONS)
            .map(|index| systems[index % SYSTEM_PROMPTS].clone())
            .collect();
        for conversation in &mut conversations {
            let most = bytes.saturating_sub(conversation.len()).max(1);
            let spoken = rng.usize(..most);
            conversation.extend(letters(&mut rng, spoken));
        }
        Talk {
            rng,
            systems,
            conversations,
            bytes,
        }
    }

    fn next(&mut self) -> &[u8] {
        let index = self.rng.usize(..CONVERSATIONS);
        let turn = letters(&mut self.rng, self.bytes / TURNS);
        let conversation = &mut self.conversations[index];
        if conversation.len() > self.bytes {
            conversation.clone_from(&self.systems[self.rng.usize(..SYSTEM_PROMPTS)]);
            // Most of a prompt is there from the beginning, so that its length is the one asked for.
            let spoken = letters(&mut self.rng, self.bytes / 2);
            conversation.extend(spoken);
        }
        conversation.extend(turn);
        conversation
    }
}

fn letters(rng: &mut fastrand::Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.u8(b'a'..=b'z')).collect()
}

struct Site {
    /// Requests in flight, by worker.
    loads: Vec<AtomicUsize>,
    policy: Box<dyn Policy>,
}

/// The state of one deciding thread.
#[derive(Default)]
struct PerThread {
    candidates: Vec<Candidate>,
    /// The workers of its requests in flight.
    flights: Vec<usize>,
}

impl Site {
    fn new(workers: usize) -> Site {
        Site {
            loads: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            policy: build(&PolicySettings {
                max_tree_size: 1 << 30,
                ..PolicySettings::default()
            }),
        }
    }

    /// Decides on one prompt, and reports that all the text that the worker knew was cached. Returns nanoseconds.
    fn decide(&self, text: &[u8], own: &mut PerThread) -> u64 {
        let start = Instant::now();
        let request = RequestKey {
            text,
            model: b"m",
            ..RequestKey::default()
        };
        let PerThread {
            candidates,
            flights,
        } = own;
        candidates.clear();
        candidates.extend(self.loads.iter().zip(0..).map(|(load, slot)| Candidate {
            slot,
            load: load.load(Relaxed),
            url_hash: 0,
        }));
        let (worker, claim) = self.policy.choose(candidates, &request);
        let receipt = claim.keep();
        let took = start.elapsed().as_nanos() as u64;
        let usage = Usage {
            prompt_tokens: 1000,
            cached_tokens: 1000,
        };
        self.policy.answered(receipt, usage);
        // A few requests at every worker are in flight.
        self.loads[worker].fetch_add(1, Relaxed);
        if flights.len() < 4 * self.loads.len() {
            flights.push(worker);
        } else {
            let oldest = took as usize % flights.len();
            let ended = std::mem::replace(&mut flights[oldest], worker);
            self.loads[ended].fetch_sub(1, Relaxed);
        }
        took
    }

    fn nodes(&self) -> usize {
        let nodes = |metric: &Metric| match metric.value {
            MetricValue::Gauge(nodes) if metric.name == "tree_nodes" => Some(nodes as usize),
            _ => None,
        };
        let metrics = self.policy.metrics();
        metrics.iter().find_map(nodes).expect("a gauge of nodes")
    }
}

/// Decisions on prompts of `bytes` bytes while the tree grows to `nodes` nodes: one entry for every doubling
/// of the tree, with the median and the 99th percentile of the last decisions before it, in nanoseconds.
pub fn growth(workers: usize, bytes: usize, nodes: usize) -> Value {
    let site = Site::new(workers);
    let mut talk = Talk::new(1, bytes);
    let mut own = PerThread::default();
    let mut points = Vec::new();
    let mut next = 1000;
    let mut taken = Vec::new();
    loop {
        taken.push(site.decide(talk.next(), &mut own));
        if taken.len() < 500 {
            continue;
        }
        let here = site.nodes();
        if here >= next {
            taken.sort_unstable();
            let (p50, p99) = (taken[taken.len() / 2], taken[taken.len() * 99 / 100]);
            points.push(json!({"nodes": here, "p50_ns": p50, "p99_ns": p99}));
            if here >= nodes {
                break;
            }
            next = (here * 2).min(nodes);
        }
        if taken.len() >= 5000 {
            taken.clear();
        }
    }
    json!({"workers": workers, "prompt_bytes": bytes, "points": points})
}

/// Decisions a second of `threads` threads together, each with its own prompts under shared system prompts.
pub fn throughput(workers: usize, bytes: usize, threads: usize) -> f64 {
    const DECISIONS: usize = 50_000;
    let site = Site::new(workers);
    let talks: Vec<Talk> = (0..threads)
        .map(|seed| Talk::new(seed as u64 + 1, bytes))
        .collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = talks
            .into_iter()
            .map(|mut talk| {
                let site = &site;
                scope.spawn(move || {
                    let mut own = PerThread::default();
                    let nanoseconds: u64 = (0..DECISIONS)
                        .map(|_| site.decide(talk.next(), &mut own))
                        .sum();
                    DECISIONS as f64 * 1e9 / nanoseconds as f64
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    })
}
