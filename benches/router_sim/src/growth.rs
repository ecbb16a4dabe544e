//! Measures decision cost, hit rate and time to the first token as the tree, the fleet and the traffic grow.

use std::time::Instant;

use serde_json::{Value, json};

use crate::cost;
use crate::fleet::{Setup, SimOutcome, run};
use crate::tables::POLICIES;
use crate::trace::Shape;

/// Requests per worker, in a fleet of any size.
const REQUESTS_EACH: usize = 1000;

/// A fleet of `count` workers and `requests` in all, with conversations, prompts and caches in proportion.
pub fn scale(count: usize, requests: usize) -> Value {
    let (setup, shape) = workers(count as f64);
    let trace = Shape { requests, ..shape }.make();
    let rows = POLICIES[..2].iter().map(|(name, build)| {
        let began = Instant::now();
        let outcome = run(&setup, &trace, &*build());
        json!({
            "policy": name,
            "workers": count,
            "requests": requests,
            "hit_rate": outcome.hit_rate,
            "max_over_mean": outcome.max_over_mean,
            "first_token_mean": outcome.mean_first_token(),
            "first_token_p99": outcome.first_token_at(0.99),
            "simulated_seconds": outcome.seconds,
            "took_seconds": began.elapsed().as_secs_f64(),
        })
    });
    rows.collect()
}

/// The figures that benches/router_sim/plot.py draws.
pub fn measure() -> Value {
    let trees: Vec<Value> = [4, 64, 256]
        .map(|workers| cost::growth(workers, 4096, 1_000_000))
        .into();
    let threads: Vec<Value> = [1, 2, 4]
        .map(|threads| json!({"threads": threads, "per_second": cost::throughput(64, 4096, threads)}))
        .into();
    json!({
        "trees": trees,
        "long_prompts": cost::growth(64, 65_536, 50_000),
        "threads": threads,
        "workers": lines(&[4.0, 8.0, 16.0, 32.0, 64.0, 128.0], &workers),
        "traffic": lines(&[25.0, 50.0, 100.0, 200.0, 400.0], &traffic),
    })
}

/// The first policies of the table, each over the same values.
fn lines(values: &[f64], at: &dyn Fn(f64) -> (Setup, Shape)) -> Value {
    let mut lines = serde_json::Map::new();
    for (name, build) in &POLICIES[..4] {
        let point = |&value: &f64| {
            let (setup, shape) = at(value);
            let outcome: SimOutcome = run(&setup, &shape.make(), &*build());
            json!({
                "at": value,
                "hit_rate": outcome.hit_rate,
                "max_over_mean": outcome.max_over_mean,
                "first_token": outcome.mean_first_token(),
            })
        };
        lines.insert((*name).to_owned(), values.iter().map(point).collect());
    }
    Value::Object(lines)
}

/// A fleet of `count` workers, with conversations, system prompts, cache and traffic in proportion.
fn workers(count: f64) -> (Setup, Shape) {
    let workers = count as usize;
    let base = Shape::multi_turn();
    let shape = Shape {
        requests: workers * REQUESTS_EACH,
        groups: base.groups * workers / 8,
        conversations: base.conversations * workers / 8,
        kv_tokens: base.kv_tokens * workers / 8,
        rate: 20.0 * count,
        ..base
    };
    let setup = Setup {
        clients: None,
        ..Setup::new(workers, &shape)
    };
    (setup, shape)
}

/// Eight workers with `rate` requests a second.
fn traffic(rate: f64) -> (Setup, Shape) {
    let shape = Shape {
        requests: 8_000,
        rate,
        ..Shape::multi_turn()
    };
    let setup = Setup {
        clients: None,
        ..Setup::new(8, &shape)
    };
    (setup, shape)
}
