//! What a decision of `cache_aware` costs, by the clock, as its tree grows.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use sglang_omni_router::{
    Authorization, Candidates, Config, LoadGuard, Policy, RequestKey, Usage, Worker, build_policy,
};

const SYSTEM_PROMPTS: usize = 64;
const CONVERSATIONS: usize = 1000;
/// Turns of a prompt, were it all turns.
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
    fleet: Vec<Arc<Worker>>,
    all: Vec<usize>,
    policy: Box<dyn Policy>,
}

impl Site {
    fn new(workers: usize) -> Site {
        let worker = |index: usize| {
            let url = format!("http://w:{}", index + 1).parse();
            Arc::new(Worker::new(
                url.expect("a valid URL"),
                Authorization::OfFleet,
            ))
        };
        Site {
            fleet: (0..workers).map(worker).collect(),
            all: (0..workers).collect(),
            policy: build_policy(&Config {
                max_tree_size: 1 << 30,
                ..Config::default()
            }),
        }
    }

    /// Decides on one prompt, and hears that all the worker knew of it was cached. Returns nanoseconds.
    fn decide(&self, text: &[u8], flights: &mut Vec<LoadGuard>) -> u64 {
        let start = Instant::now();
        let request = RequestKey {
            text,
            model: b"m",
            ..RequestKey::default()
        };
        let decision = self
            .policy
            .pick(Candidates::new(&self.fleet, &self.all), &request);
        self.policy.kept(decision.receipt);
        let took = start.elapsed().as_nanos() as u64;
        let usage = Usage {
            prompt_tokens: 1000,
            cached_tokens: 1000,
        };
        self.policy
            .answered(decision.worker, decision.receipt, usage);
        // A few requests at every worker are in flight.
        let flight = LoadGuard::new(decision.worker.clone());
        if flights.len() < 4 * self.fleet.len() {
            flights.push(flight);
        } else {
            let oldest = took as usize % flights.len();
            flights[oldest] = flight;
        }
        took
    }

    fn nodes(&self) -> usize {
        let mut metrics = String::new();
        self.policy.write_metrics(&[], true, &mut metrics);
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("sglang_omni_router_tree_nodes "));
        line.and_then(|count| count.parse().ok())
            .expect("a gauge of nodes")
    }
}

/// Decisions on prompts of `bytes` bytes while the tree grows to `nodes` nodes: one entry for every doubling
/// of the tree, with the median and the 99th percentile of the last decisions before it, in nanoseconds.
pub fn growth(workers: usize, bytes: usize, nodes: usize) -> Value {
    let site = Site::new(workers);
    let mut talk = Talk::new(1, bytes);
    let mut flights = Vec::new();
    let mut points = Vec::new();
    let mut next = 1000;
    let mut taken = Vec::new();
    loop {
        taken.push(site.decide(talk.next(), &mut flights));
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

/// Decisions a second of so many threads together, each with prompts of its own under shared system prompts.
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
                    let mut flights = Vec::new();
                    let nanoseconds: u64 = (0..DECISIONS)
                        .map(|_| site.decide(talk.next(), &mut flights))
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
