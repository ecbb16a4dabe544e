//! How decision cost, hit rate and time to the first token grow with the tree, the fleet and the traffic.

use serde_json::{Value, json};

use crate::cost;
use crate::fleet::{Outcome, Setup, run};
use crate::tables::POLICIES;
use crate::trace::Shape;

/// Requests of a fleet of any size, for each worker.
const REQUESTS_EACH: usize = 1000;

/// What benches/router_sim/plot.py draws.
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
            let outcome: Outcome = run(&setup, &shape.make(), &*build());
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

/// So many workers, and conversations, system prompts, cache and traffic in proportion.
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

/// So many requests a second for eight workers.
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
