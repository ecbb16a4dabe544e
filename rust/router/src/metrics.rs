//! Counters, and their rendering in Prometheus' text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hyper::StatusCode;

use crate::lane::Shared;
use crate::standing::Health;
use crate::worker::Worker;

#[derive(Default)]
pub struct Metrics {
    /// Answers given, by the first digit of their status.
    answers: [AtomicU64; 6],
    pub retries: AtomicU64,
    /// Requests that no worker could take.
    pub unserved: AtomicU64,
    /// Retries that the budget did not allow.
    pub retries_refused: AtomicU64,
}

impl Metrics {
    pub fn count(&self, status: StatusCode) {
        self.answers[usize::from(status.as_u16() / 100).min(5)].fetch_add(1, Relaxed);
    }
}

pub fn render(shared: &Shared) -> String {
    let mut out = String::with_capacity(4096);
    let metrics = &shared.metrics;
    head(
        &mut out,
        "responses_total",
        "counter",
        "Answers given to clients, by class of status.",
    );
    for (class, count) in metrics.answers.iter().enumerate().skip(1) {
        let _ = writeln!(
            out,
            "sglang_omni_router_responses_total{{status=\"{class}xx\"}} {}",
            count.load(Relaxed)
        );
    }
    for (name, help, count) in [
        (
            "retries_total",
            "Attempts on another worker after a failed one.",
            &metrics.retries,
        ),
        (
            "unserved_total",
            "Requests that no worker could take.",
            &metrics.unserved,
        ),
        (
            "retries_refused_total",
            "Retries that the retry budget did not allow.",
            &metrics.retries_refused,
        ),
    ] {
        head(&mut out, name, "counter", help);
        let _ = writeln!(out, "sglang_omni_router_{name} {}", count.load(Relaxed));
    }
    let fleet = shared.fleet.read();
    type Read = fn(&Worker) -> u64;
    let of_workers: [(&str, &str, &str, Read); 5] = [
        (
            "worker_up",
            "gauge",
            "1 if the last health check succeeded.",
            |w| u64::from(w.health() == Health::Up),
        ),
        (
            "worker_draining",
            "gauge",
            "1 if the worker takes no new requests.",
            |w| u64::from(w.is_draining()),
        ),
        (
            "worker_inflight",
            "gauge",
            "Requests in flight at a worker.",
            |w| w.load() as u64,
        ),
        (
            "worker_requests_total",
            "counter",
            "Requests a worker answered.",
            |w| w.requests.load(Relaxed),
        ),
        (
            "worker_failures_total",
            "counter",
            "Attempts at a worker that failed.",
            |w| w.failures.load(Relaxed),
        ),
    ];
    for (name, kind, help, read) in of_workers {
        head(&mut out, name, kind, help);
        for worker in fleet.iter() {
            let _ = writeln!(
                out,
                "sglang_omni_router_{name}{{worker=\"{}\"}} {}",
                worker.url,
                read(worker)
            );
        }
    }
    shared.policy.write_metrics(&fleet, &mut out);
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(
        out,
        "# HELP sglang_omni_router_{name} {help}\n# TYPE sglang_omni_router_{name} {kind}"
    );
}
