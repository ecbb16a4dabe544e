//! What one decision of `cache_aware` costs once its tree is large:
//!
//!     policy_cost [PROMPTS] [WORKERS]
//!
//! Prompts of 4 KB share system prompts and grow by turns, as conversations do. No sockets, one thread.

use std::sync::Arc;
use std::time::Instant;

use sglang_omni_router::{Candidates, Config, RequestKey, Worker, build_policy};

const PROMPT_BYTES: usize = 4096;

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<usize>().expect("a number"));
    let prompts = arguments.next().unwrap_or(600_000);
    let workers = arguments.next().unwrap_or(256);
    let worker = |index: usize| {
        Arc::new(Worker::parse(&format!("http://w:{}", index + 1)).expect("a valid URL"))
    };
    let fleet: Vec<Arc<Worker>> = (0..workers).map(worker).collect();
    let all: Vec<usize> = (0..workers).collect();
    let policy = build_policy(&Config {
        max_tree_size: 1 << 30,
        ..Config::default()
    });

    let mut rng = fastrand::Rng::with_seed(1);
    let letters = |rng: &mut fastrand::Rng, count: usize| -> Vec<u8> {
        (0..count).map(|_| rng.u8(b'a'..=b'z')).collect()
    };
    let systems: Vec<Vec<u8>> = (0..64).map(|_| letters(&mut rng, 1024)).collect();
    let mut conversations: Vec<Vec<u8>> = Vec::new();
    let mut nanoseconds: Vec<u64> = Vec::with_capacity(prompts);
    for _ in 0..prompts {
        let index = match conversations.len() {
            known if known < 1000 || rng.u8(..10) < 3 => {
                conversations.push(systems[rng.usize(..systems.len())].clone());
                known
            }
            known => known - 1 - rng.usize(..1000),
        };
        let turn = letters(&mut rng, 64);
        let conversation = &mut conversations[index];
        if conversation.len() > PROMPT_BYTES {
            conversation.truncate(1024 + rng.usize(..2048));
        }
        conversation.extend(turn);
        let start = Instant::now();
        let request = RequestKey {
            text: conversation,
            model: b"m",
            session: b"",
        };
        std::hint::black_box(policy.pick(Candidates::new(&fleet, &all), &request));
        nanoseconds.push(start.elapsed().as_nanos() as u64);
    }
    let mut last = nanoseconds.split_off(prompts - prompts / 10);
    last.sort_unstable();
    let mut metrics = String::new();
    policy.write_metrics(&[], &mut metrics);
    let nodes = metrics
        .lines()
        .find(|line| line.starts_with("sglang_omni_router_tree_nodes"))
        .unwrap_or_default();
    println!(
        "{nodes}; p50 {} ns, p99 {} ns",
        last[last.len() / 2],
        last[last.len() * 99 / 100]
    );
}
