//! Hit rates of routers that know what is in the caches, and of one that concludes it from what it sent there.

use std::io::{self, Write};

use sglang_omni_policy::blocks::event::Coverage;
use sglang_omni_policy::{CacheAware, PolicySettings};

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
            coverage: Coverage::Whole,
        }),
    ),
    (
        "both, the larger",
        Some(EventFeed {
            delay: DELAY,
            coverage: Coverage::Part,
        }),
    ),
    (
        "perfect",
        Some(EventFeed {
            delay: 0.0,
            coverage: Coverage::Whole,
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
