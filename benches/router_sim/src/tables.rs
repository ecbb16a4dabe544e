//! Hit rate and balance, as tables.

use std::io::{self, Write};

use sglang_omni_router::{Config, Policy, PolicyKind, build_policy};

use crate::baselines::{Classic, FirstWorker, PerfectAffinity};
use crate::fleet::{Setup, run};
use crate::trace::Shape;

type Build = fn() -> Box<dyn Policy>;

fn built_in(policy: PolicyKind) -> Box<dyn Policy> {
    build_policy(&Config {
        policy,
        ..Config::default()
    })
}

const POLICIES: [(&str, Build); 8] = [
    ("perfect affinity", || Box::new(PerfectAffinity::default())),
    ("classic cache_aware", || Box::new(Classic::default())),
    ("all on one worker", || Box::new(FirstWorker)),
    ("round_robin", || built_in(PolicyKind::RoundRobin)),
    ("least_load", || built_in(PolicyKind::LeastLoad)),
    ("power_of_two", || built_in(PolicyKind::PowerOfTwo)),
    ("consistent_hash", || built_in(PolicyKind::ConsistentHash)),
    ("cache_aware", || built_in(PolicyKind::CacheAware)),
];

pub fn print(out: &mut impl Write) -> io::Result<()> {
    for (name, shape) in [
        ("multi-turn", Shape::multi_turn()),
        ("shared-prefixes", Shape::shared_prefixes()),
    ] {
        let trace = shape.make();
        writeln!(out, "| {name} | 4 workers | 8 workers |\n|---|---|---|")?;
        for (policy, build) in POLICIES {
            write!(out, "| {policy} |")?;
            for workers in [4, 8] {
                let outcome = run(&Setup::new(workers, &shape), &trace, &*build());
                write!(
                    out,
                    " {:.3} ({:.2}) |",
                    outcome.hit_rate, outcome.max_over_mean
                )?;
            }
            writeln!(out)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
