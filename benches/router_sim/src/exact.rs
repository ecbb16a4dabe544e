//! Hit rates of routers that know what is in the caches, and of one that concludes it from what it sent there.

use std::io::{self, Write};
use std::time::Instant;

use sglang_omni_policy::blocks::event::{CacheEvent, Coverage, Stored};
use sglang_omni_policy::{CacheAware, Candidate, Policy, PolicySettings, RequestKey};

use crate::fleet::{EventFeed, Restart, Setup, run};
use crate::trace::Shape;

const SEEDS: &[u64] = &[2, 3, 4];

/// Seconds that an event takes: an engine publishes after its step.
const DELAY: f64 = 0.02;

const ROUTERS: [(&str, Option<EventFeed>); 4] = [
    ("tree", None),
    (
        "events",
        Some(EventFeed {
            delay: DELAY,
            every: 1,
        }),
    ),
    (
        "events of every other worker",
        Some(EventFeed {
            delay: DELAY,
            every: 2,
        }),
    ),
    (
        "perfect: events at once",
        Some(EventFeed {
            delay: 0.0,
            every: 1,
        }),
    ),
];

fn scenarios() -> Vec<(&'static str, Shape, Setup)> {
    let shape = Shape {
        requests: 20_000,
        rate: 100.0,
        ..Shape::multi_turn()
    };
    let usual = Setup {
        clients: None,
        ..Setup::new(8, &shape)
    };
    let small = Setup {
        kv_bytes: usual.kv_bytes / 4,
        ..usual.clone()
    };
    let past = |share: f64, of: &Setup| Setup {
        past: share,
        ..of.clone()
    };
    let restart = Setup {
        restart: Some(Restart { down: (0.4, 0.42) }),
        ..usual.clone()
    };
    vec![
        ("usual", shape.clone(), usual.clone()),
        ("a restart", shape.clone(), restart),
        ("caches a quarter", shape.clone(), small.clone()),
        ("a third past the router", shape.clone(), past(0.33, &usual)),
        ("both", shape, past(0.33, &small)),
    ]
}

/// Hit rate of the requests that came through the router, and mean milliseconds to the first token.
pub fn print(out: &mut impl Write) -> io::Result<()> {
    let scenarios = scenarios();
    write!(out, "| 8 workers, multi-turn, 100 requests/s |")?;
    for (name, ..) in &scenarios {
        write!(out, " {name} |")?;
    }
    writeln!(out, "\n|---{}|", "|---".repeat(scenarios.len()))?;
    for (name, events) in ROUTERS {
        write!(out, "| {name} |")?;
        for (_, shape, setup) in &scenarios {
            let setup = Setup {
                events,
                ..setup.clone()
            };
            let outcomes = SEEDS.iter().map(|&seed| {
                let shape = Shape {
                    seed,
                    ..shape.clone()
                };
                let policy = CacheAware::new(&PolicySettings::default());
                let outcome = run(&setup, &shape.make(), &policy);
                (outcome.hit_rate, outcome.mean_first_token() * 1e3)
            });
            let (hits, millis) =
                outcomes.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let count = SEEDS.len() as f64;
            write!(out, " {:.3}, {:.0} |", hits / count, millis / count)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Prompts of the measured decisions, in tokens and in blocks.
const PROMPT: u32 = 4096;
const PROMPT_BLOCKS: u32 = PROMPT / 16;
const SYSTEM_BLOCKS: u32 = 64;

/// A conversation's tokens: one of 16 system prompts, then its own.
fn conversation(number: u32) -> Vec<u32> {
    let system = (0..16 * SYSTEM_BLOCKS).map(|at| (number % 16) << 16 | at);
    let own = (16 * SYSTEM_BLOCKS..PROMPT).map(|at| number << 12 | at);
    system.chain(own).collect()
}

/// Nanoseconds of decisions, with 4,096-token prompts that one worker has and whose system prompt many have.
pub fn cost(out: &mut impl Write, workers: u32) -> io::Result<()> {
    const EACH: u32 = 8;
    let policy = CacheAware::new(&PolicySettings::default());
    let blocks = policy.blocks().expect("it uses events");
    for slot in 0..workers {
        blocks.cover(slot, Coverage::Whole);
        for number in EACH * slot..EACH * (slot + 1) {
            let name = u64::from(number) * u64::from(PROMPT_BLOCKS);
            let stored = Stored {
                blocks: (name..name + u64::from(PROMPT_BLOCKS)).collect(),
                tokens: conversation(number),
                block_size: 16,
                ..Stored::default()
            };
            blocks.apply(slot, 0, &CacheEvent::Stored(stored));
        }
    }
    let fleet: Vec<Candidate> = (0..workers)
        .map(|slot| Candidate {
            slot,
            load: 1 + slot as usize % 3,
            url_hash: 0,
        })
        .collect();
    let mut random = fastrand::Rng::with_seed(1);
    let mut costs = [Vec::new(), Vec::new()];
    let mut right = 0;
    const DECISIONS: usize = 20_000;
    for _ in 0..DECISIONS {
        let number = random.u32(..EACH * workers);
        let tokens = conversation(number);
        // What a body says of ids, as the tree would have it.
        let text: Vec<u8> = tokens[..512]
            .iter()
            .flat_map(|id| id.to_le_bytes())
            .collect();
        for (tokens, costs) in [&tokens[..0], &tokens].into_iter().zip(&mut costs) {
            let request = RequestKey {
                text: &text,
                tokens,
                ..RequestKey::default()
            };
            let policy: &dyn Policy = &policy;
            let began = Instant::now();
            let (chosen, claim) = policy.choose(&fleet, &request);
            costs.push(began.elapsed().as_nanos());
            drop(claim);
            right += usize::from(!tokens.is_empty() && fleet[chosen].slot == number / EACH);
        }
    }
    for (name, mut costs) in ["tree", "events"].into_iter().zip(costs) {
        costs.sort_unstable();
        let at = |share: f64| costs[(share * (costs.len() - 1) as f64) as usize] as f64 / 1e3;
        writeln!(
            out,
            "{name}: {workers} workers, {:.1} us in the median, {:.1} us at the 99th percentile",
            at(0.5),
            at(0.99)
        )?;
    }
    writeln!(out, "{right} of {DECISIONS} went where the prompt was")
}
