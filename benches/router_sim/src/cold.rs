//! Shows how a new router spreads its first requests, before it knows anything of the traffic.

use std::io::{self, Write};

use sglang_omni_policy::{PolicySettings, build};

use crate::fleet::{Setup, SimOutcome, run};
use crate::trace::{Request, Shape};

/// The prompts that come before the shared prefixes: their names and their lengths in tokens.
const BEFORE: [(&str, &[u32]); 4] = [
    ("nothing", &[]),
    ("a short prompt", &[2]),
    ("a long one", &[25_000]),
    ("240 short ones", &[2; 240]),
];

/// `count` questions behind `prefixes` shared prefixes, after prompts of so many tokens.
fn trace(before: &[u32], prefixes: usize, count: usize) -> Vec<Request> {
    let first = before.iter().zip(0u32..).map(|(&tokens, index)| Request {
        at: 0.0,
        group: u32::MAX,
        system_tokens: 0,
        conversation: u32::MAX - index,
        conversation_tokens: tokens,
        output_tokens: 16,
    });
    let shape = Shape {
        requests: count,
        groups: prefixes,
        skew: 0.0,
        rate: 200.0,
        ..Shape::shared_prefixes()
    };
    // After the others' last answers.
    let shared = shape.make().into_iter().map(|request| Request {
        at: request.at + 30.0,
        ..request
    });
    first.chain(shared).collect()
}

/// Requests of each of four workers, and the hit rate: all requests at once, 16 at a time, and 200 a second.
pub fn print(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "| four workers | all at once | 16 at a time | 200 a second |\n|---|---|---|---|"
    )?;
    for (name, before) in BEFORE {
        for (prefixes, count) in [(1, 128), (1, 256), (4, 128), (4, 256)] {
            write!(out, "| {count} of {prefixes} after {name} |")?;
            let trace = trace(before, prefixes, count);
            for clients in [Some(trace.len()), Some(16), None] {
                let setup = Setup {
                    clients,
                    ..Setup::new(4, &Shape::shared_prefixes())
                };
                let SimOutcome {
                    requests, hit_rate, ..
                } = run(&setup, &trace, &*build(&PolicySettings::default()));
                let lie: Vec<String> = requests.iter().map(usize::to_string).collect();
                write!(out, " {} ({hit_rate:.2}) |", lie.join("/"))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}
