//! `/metrics`: all that is counted, in Prometheus' text format.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use sglang_omni_policy::{Metric, MetricValue};

use crate::base::end::End;
use crate::base::histogram::Snapshot;
use crate::base::metrics::Metrics;
use crate::base::prometheus::{escaped, head, histogram};
use crate::base::route::Route;
use crate::fleet::health_flags::Health;
use crate::fleet::worker::Worker;
use crate::proxy::lane::Proxy;

/// `sees_urls`: whether workers are named by their URLs, instead of their ids.
pub fn render(proxy: &Proxy, sees_urls: bool) -> String {
    let mut out = String::with_capacity(16 << 10);
    requests(&mut out, &proxy.metrics);
    let metrics = &proxy.metrics;
    let plain: [(&str, &str, &str, u64); 12] = [
        (
            "requests_in_flight",
            "gauge",
            "Requests on their way to a worker, or at one.",
            metrics.in_flight(),
        ),
        (
            "requests_waiting",
            "gauge",
            "Requests that wait because --max-concurrent-requests are in flight.",
            proxy.in_flight.waiting() as u64,
        ),
        (
            "received_bytes_total",
            "counter",
            "Bytes of request bodies.",
            metrics.received_bytes(),
        ),
        (
            "sent_bytes_total",
            "counter",
            "Bytes of answers' bodies.",
            metrics.sent_bytes(),
        ),
        (
            "connections_open",
            "gauge",
            "Client connections that are open.",
            metrics.connections(),
        ),
        (
            "connections_total",
            "counter",
            "Client connections accepted.",
            metrics.accepted(),
        ),
        (
            "tls_handshakes_failed_total",
            "counter",
            "Client connections that ended before TLS was set up.",
            metrics.failed_handshakes(),
        ),
        (
            "retries_total",
            "counter",
            "Attempts after a failed one, on another worker or on a new connection.",
            metrics.retries.load(Relaxed),
        ),
        (
            "unserved_total",
            "counter",
            "Requests that no worker could take.",
            metrics.unserved.load(Relaxed),
        ),
        (
            "retries_refused_total",
            "counter",
            "Retries that the retry budget did not allow.",
            metrics.retries_refused.load(Relaxed),
        ),
        (
            "log_lines_dropped_total",
            "counter",
            "Log lines lost because nobody read them fast enough.",
            proxy.log_losses.dropped_lines() as u64,
        ),
        (
            "workers",
            "gauge",
            "Workers in the list.",
            proxy.fleet.read().len() as u64,
        ),
    ];
    for (name, kind, help, value) in plain {
        head(&mut out, name, kind, help);
        let _ = writeln!(out, "sglang_omni_router_{name} {value}");
    }
    workers(&mut out, proxy, sees_urls);
    policy(&mut out, proxy, sees_urls);
    out
}

fn policy(out: &mut String, proxy: &Proxy, sees_urls: bool) {
    let fleet = proxy.fleet.read();
    for Metric { name, help, value } in proxy.policy.metrics() {
        match value {
            MetricValue::Counter(count) => {
                head(out, name, "counter", help);
                let _ = writeln!(out, "sglang_omni_router_{name} {count}");
            }
            MetricValue::Gauge(value) => {
                head(out, name, "gauge", help);
                let _ = writeln!(out, "sglang_omni_router_{name} {value}");
            }
            MetricValue::GaugeBySlot(values) => {
                head(out, name, "gauge", help);
                for worker in fleet.iter() {
                    let value = values.get(worker.slot() as usize).copied().unwrap_or(0);
                    let worker = escaped(&worker.name(sees_urls));
                    let _ = writeln!(
                        out,
                        "sglang_omni_router_{name}{{worker=\"{worker}\"}} {value}"
                    );
                }
            }
        }
    }
}

fn requests(out: &mut String, metrics: &Metrics) {
    head(
        out,
        "requests_total",
        "counter",
        "Requests by route and by the status of their answer; 499 where the client did not wait for one.",
    );
    for route in Route::all() {
        for (status, count) in metrics.answers(route) {
            let _ = writeln!(
                out,
                "sglang_omni_router_requests_total{{route=\"{}\",status=\"{status}\"}} {count}",
                route.name()
            );
        }
    }
    head(
        out,
        "requests_ended_total",
        "counter",
        "Requests by how their answer ended: complete, the client left before, the worker broke off, or nothing came for --stream-idle-timeout.",
    );
    for (end, how) in End::NAMES.iter().enumerate() {
        let count = metrics.ended(end);
        let _ = writeln!(
            out,
            "sglang_omni_router_requests_ended_total{{how=\"{how}\"}} {count}"
        );
    }
    type Read = fn(&Metrics, Route) -> Snapshot;
    let histograms: [(&str, &str, Read); 2] = [
        (
            "time_to_first_byte_seconds",
            "From a request's head to the first bytes of a worker's answer.",
            Metrics::ttfb,
        ),
        (
            "request_duration_seconds",
            "From a request's head to the end of its answer.",
            Metrics::duration,
        ),
    ];
    for (name, help, read) in histograms {
        head(out, name, "histogram", help);
        for route in Route::all() {
            histogram(out, name, "route", route.name(), &read(metrics, route));
        }
    }
}

fn workers(out: &mut String, proxy: &Proxy, sees_urls: bool) {
    let fleet = proxy.fleet.read();
    type Read = fn(&Worker) -> u64;
    let values: [(&str, &str, &str, Read); 5] = [
        (
            "worker_up",
            "gauge",
            "1 if the worker's state is up: nothing is known against it.",
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
    for (name, kind, help, read) in values {
        head(out, name, kind, help);
        for worker in fleet.iter() {
            let _ = writeln!(
                out,
                "sglang_omni_router_{name}{{worker=\"{}\"}} {}",
                escaped(&worker.name(sees_urls)),
                read(worker)
            );
        }
    }
    let name = "worker_time_to_first_byte_seconds";
    head(
        out,
        name,
        "histogram",
        "From a request's head to the first bytes of the worker's answer.",
    );
    for worker in fleet.iter() {
        histogram(
            out,
            name,
            "worker",
            &escaped(&worker.name(sees_urls)),
            &worker.ttfb.read(),
        );
    }
}
