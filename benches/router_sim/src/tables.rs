//! Hit rate, balance and time to the first token of every policy, as tables.

use std::io::{self, Write};

use sglang_omni_policy::{CacheAware, Policy, PolicyKind, PolicySettings, Tuning, build};

use crate::baselines::{Classic, FirstWorker, PerfectAffinity};
use crate::fleet::{Restart, Setup, SimOutcome, run};
use crate::trace::Shape;

pub type Build = fn() -> Box<dyn Policy>;

/// The seeds of the traces; a table's figures are means over them.
const SEEDS: &[u64] = &[2, 3, 4];
/// Other seeds than those that the parameters were chosen with.
const HELD_OUT: &[u64] = &[101, 102, 103, 104, 105, 106];

fn built_in(kind: PolicyKind) -> Box<dyn Policy> {
    build(&PolicySettings {
        kind,
        ..PolicySettings::default()
    })
}

fn tuned(change: fn(&mut Tuning)) -> Box<dyn Policy> {
    let mut tuning = Tuning::default();
    change(&mut tuning);
    Box::new(CacheAware::tuned(&PolicySettings::default(), tuning))
}

pub const POLICIES: [(&str, Build); 8] = [
    ("cache_aware", || built_in(PolicyKind::CacheAware)),
    ("classic cache_aware", || Box::new(Classic::default())),
    ("perfect affinity", || Box::new(PerfectAffinity::default())),
    ("consistent_hash", || built_in(PolicyKind::ConsistentHash)),
    ("least_load", || built_in(PolicyKind::LeastLoad)),
    ("power_of_two", || built_in(PolicyKind::PowerOfTwo)),
    ("round_robin", || built_in(PolicyKind::RoundRobin)),
    ("all on one worker", || Box::new(FirstWorker)),
];

const ABLATIONS: [(&str, Build); 7] = [
    ("cache_aware", || tuned(|_| ())),
    ("without load", || tuned(|tuning| tuning.load = 0.0)),
    ("without recent shares", || {
        tuned(|tuning| tuning.recent = 0.0)
    }),
    ("without tree sizes", || tuned(|tuning| tuning.tree = 0.0)),
    ("without the thresholds", || {
        tuned(|tuning| tuning.imbalance = 1.0)
    }),
    ("without correction", || {
        tuned(|tuning| tuning.correction = false)
    }),
    ("classic cache_aware", || Box::new(Classic::default())),
];

/// Means over the seeds.
struct Means {
    hit_rate: f64,
    max_over_mean: f64,
    first_token: f64,
    slow_first_token: f64,
}

fn means(setup: &Setup, shape: &Shape, build: Build, seeds: &[u64]) -> Means {
    let outcome = |&seed: &u64| {
        let shape = Shape {
            seed,
            ..shape.clone()
        };
        run(setup, &shape.make(), &*build())
    };
    let outcomes: Vec<SimOutcome> = seeds.iter().map(outcome).collect();
    let mean = |of: &dyn Fn(&SimOutcome) -> f64| {
        outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64
    };
    Means {
        hit_rate: mean(&|outcome| outcome.hit_rate),
        max_over_mean: mean(&|outcome| outcome.max_over_mean),
        first_token: mean(&|outcome| outcome.mean_first_token()),
        slow_first_token: mean(&|outcome| outcome.first_token_at(0.99)),
    }
}

/// Both traces with 16 requests in flight, on 4 and 8 workers: hit rate, and the busiest worker's requests
/// over the mean.
fn closed(
    out: &mut impl Write,
    name: &str,
    rows: &[(&str, Build)],
    seeds: &[u64],
) -> io::Result<()> {
    writeln!(
        out,
        "| {name} | multi-turn, 4 workers | 8 workers | shared prefixes, 4 | 8 |\n|---|---|---|---|---|"
    )?;
    for &(row, build) in rows {
        write!(out, "| {row} |")?;
        for shape in [Shape::multi_turn(), Shape::shared_prefixes()] {
            for workers in [4, 8] {
                let found = means(&Setup::new(workers, &shape), &shape, build, seeds);
                write!(out, " {:.3} ({:.2}) |", found.hit_rate, found.max_over_mean)?;
            }
        }
        writeln!(out)?;
    }
    writeln!(out)
}

/// Eight workers, with requests that arrive by themselves.
fn arriving(shape: &Shape) -> Setup {
    Setup {
        clients: None,
        ..Setup::new(8, shape)
    }
}

fn scenarios() -> Vec<(&'static str, Shape, Setup)> {
    let talk = Shape {
        requests: 20_000,
        rate: 300.0,
        ..Shape::multi_turn()
    };
    let hot = Shape {
        requests: 20_000,
        rate: 600.0,
        skew: 2.0,
        ..Shape::shared_prefixes()
    };
    let bursts = Shape {
        rate: 150.0,
        burst: (10.0, 2.0, 4.0),
        ..talk.clone()
    };
    let restart = Some(Restart { down: (0.4, 0.45) });
    let on = arriving(&talk);
    vec![
        ("steady", talk.clone(), on.clone()),
        ("bursts", bursts, on.clone()),
        ("one hot prefix", hot.clone(), arriving(&hot)),
        (
            "a restart",
            talk.clone(),
            Setup {
                restart,
                ..on.clone()
            },
        ),
        (
            "half are slow",
            talk,
            Setup {
                speeds: vec![1.0, 0.4],
                ..on
            },
        ),
    ]
}

/// Hit rate, and milliseconds to the first token: mean / 99th percentile.
fn open(out: &mut impl Write, name: &str, rows: &[(&str, Build)]) -> io::Result<()> {
    let scenarios = scenarios();
    write!(out, "| {name} |")?;
    for (scenario, ..) in &scenarios {
        write!(out, " {scenario} |")?;
    }
    writeln!(out, "\n|---{}|", "|---".repeat(scenarios.len()))?;
    for &(row, build) in rows {
        write!(out, "| {row} |")?;
        for (_, shape, setup) in &scenarios {
            let found = means(setup, shape, build, SEEDS);
            let (mean, slow) = (found.first_token * 1e3, found.slow_first_token * 1e3);
            write!(out, " {:.2}, {mean:.0} / {slow:.0} |", found.hit_rate)?;
        }
        writeln!(out)?;
    }
    writeln!(out)
}

pub fn print(out: &mut impl Write) -> io::Result<()> {
    closed(out, "16 requests in flight", &POLICIES, SEEDS)?;
    closed(out, "one part less", &ABLATIONS, SEEDS)?;
    open(out, "8 workers, requests arrive", &POLICIES)?;
    open(out, "one part less", &ABLATIONS)
}

pub fn print_held_out(out: &mut impl Write) -> io::Result<()> {
    let rows = &POLICIES[..3];
    closed(out, "16 requests in flight, held-out seeds", rows, HELD_OUT)
}
