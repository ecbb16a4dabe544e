//! `/metrics`: everything that is counted, in Prometheus' text format.

use std::sync::atomic::Ordering::Relaxed;

use sglang_omni_policy::{Metric, MetricValue};

use crate::base::end::End;
use crate::base::histogram::Snapshot;
use crate::base::metrics::Metrics;
use crate::base::prometheus::{escaped, head, histogram, sample};
use crate::base::route::Route;
use crate::fleet::health_flags::Health;
use crate::fleet::worker::Worker;
use crate::proxy::in_flight::TenantCounts;
use crate::proxy::lane::Proxy;

/// A metric's name, kind, help and value, or how to read its value.
type Row<T> = (&'static str, &'static str, &'static str, T);

/// Rows written as kind, name, value and help.
macro_rules! metrics {
    ($($kind:ident $name:ident = $value:expr, $help:literal;)+) => {
        [$((stringify!($name), stringify!($kind), $help, $value)),+]
    };
}

/// `sees_urls`: whether workers are named by their URLs instead of their ids.
pub fn render(proxy: &Proxy, sees_urls: bool) -> String {
    let mut out = String::with_capacity(16 << 10);
    requests(&mut out, &proxy.metrics);
    let m = &proxy.metrics;
    let plain: [Row<u64>; 15] = metrics! {
        gauge requests_in_flight = m.in_flight(), "Requests on their way to a worker, or at one.";
        gauge requests_waiting = proxy.in_flight.waiting() as u64,
            "Requests that wait because --max-concurrent-requests are in flight.";
        counter received_bytes_total = m.received_bytes(), "Bytes of request bodies.";
        counter sent_bytes_total = m.sum(|lane| &lane.sent_bytes), "Bytes of answers' bodies.";
        gauge connections_open = m.sum(|lane| &lane.connections), "Client connections that are open.";
        counter connections_total = m.sum(|lane| &lane.accepted), "Client connections accepted.";
        counter tls_handshakes_failed_total = m.sum(|lane| &lane.failed_handshakes),
            "Client connections that ended before TLS was set up.";
        counter slow_clients_total = m.sum(|lane| &lane.slow_clients),
            "Clients that were cut because they took their answers too slowly.";
        counter retries_total = m.retries.load(Relaxed),
            "Attempts after a failed one, on another worker or on a new connection.";
        counter unserved_total = m.unserved.load(Relaxed), "Requests that no worker could take.";
        counter retries_refused_total = m.retries_refused.load(Relaxed),
            "Retries that the retry budget did not allow.";
        counter sessions_begun_total = proxy.sessions.begun.load(Relaxed),
            "Sessions that were new, or forgotten.";
        counter sessions_moved_total = proxy.sessions.moved.load(Relaxed),
            "Sessions that went to another worker, since theirs could not take them.";
        counter log_lines_dropped_total = proxy.log_losses.dropped_lines() as u64,
            "Log lines lost because they were not read fast enough.";
        gauge workers = proxy.fleet.read().len() as u64, "Workers in the list.";
    };
    for (name, kind, help, value) in plain {
        head(&mut out, name, kind, help);
        sample(&mut out, name, "", value);
    }
    tenants(&mut out, proxy);
    workers(&mut out, proxy, sees_urls);
    policy(&mut out, proxy, sees_urls);
    out
}

fn policy(out: &mut String, proxy: &Proxy, sees_urls: bool) {
    let fleet = proxy.fleet.read();
    for Metric { name, help, value } in proxy.policy.metrics() {
        let kind = match value {
            MetricValue::Counter(_) => "counter",
            MetricValue::Gauge(_) | MetricValue::GaugeBySlot(_) => "gauge",
        };
        head(out, name, kind, help);
        match value {
            MetricValue::Counter(value) => sample(out, name, "", value),
            MetricValue::Gauge(value) => sample(out, name, "", value),
            MetricValue::GaugeBySlot(values) => {
                for worker in fleet.iter() {
                    let value = values.get(worker.slot() as usize).copied().unwrap_or(0);
                    sample(out, name, &label(worker, sees_urls), value);
                }
            }
        }
    }
}

fn label(worker: &Worker, sees_urls: bool) -> String {
    format!("{{worker=\"{}\"}}", escaped(&worker.name(sees_urls)))
}

fn requests(out: &mut String, metrics: &Metrics) {
    let (name, help) = (
        "requests_total",
        "Requests by route and by the status of their answer; 499 if the client did not wait for one.",
    );
    head(out, name, "counter", help);
    for route in Route::all() {
        for (status, count) in metrics.answers(route) {
            let labels = format!("{{route=\"{}\",status=\"{status}\"}}", route.name());
            sample(out, name, &labels, count);
        }
    }
    let (name, help) = (
        "requests_ended_total",
        "Requests by how their answer ended: complete, the client left before, the worker broke off, or nothing came for --stream-idle-timeout.",
    );
    head(out, name, "counter", help);
    for (end, how) in End::NAMES.iter().enumerate() {
        let count = metrics.ended(end);
        sample(out, name, &format!("{{how=\"{how}\"}}"), count);
    }
    type Read = fn(&Metrics, Route) -> Snapshot;
    let histograms: [Row<Read>; 2] = metrics! {
        histogram time_to_first_byte_seconds = Metrics::ttfb,
            "From a request's head to the first bytes of a worker's answer.";
        histogram request_duration_seconds = Metrics::duration,
            "From a request's head to the end of its answer.";
    };
    for (name, kind, help, read) in histograms {
        head(out, name, kind, help);
        for route in Route::all() {
            histogram(out, name, "route", route.name(), &read(metrics, route));
        }
    }
}

fn tenants(out: &mut String, proxy: &Proxy) {
    let tenants = proxy.in_flight.tenants();
    type Read = fn(&TenantCounts) -> u64;
    let values: [Row<Read>; 4] = metrics! {
        gauge tenant_requests_in_flight = |t| t.running, "Requests of a tenant in --tenants-file, or of all others.";
        gauge tenant_requests_waiting = |t| t.waiting, "Those that wait for their turn.";
        counter tenant_requests_admitted_total = |t| t.admitted, "Those that had their turn.";
        counter tenant_requests_refused_total = |t| t.refused, "Those that got 429 from the router.";
    };
    for (name, kind, help, read) in values {
        head(out, name, kind, help);
        for (tenant, counts) in &tenants {
            let labels = format!("{{tenant=\"{}\"}}", escaped(tenant));
            sample(out, name, &labels, read(counts));
        }
    }
}

fn workers(out: &mut String, proxy: &Proxy, sees_urls: bool) {
    let fleet = proxy.fleet.read();
    type Read = fn(&Worker) -> u64;
    let values: [Row<Read>; 8] = metrics! {
        gauge worker_up = |w| u64::from(matches!(w.health(), Health::Up | Health::HalfOpen)),
            "1 if the worker's state is up, or half_open: the next request goes to it.";
        gauge worker_draining = |w| u64::from(w.is_draining()), "1 if the worker takes no new requests.";
        gauge worker_inflight = |w| w.load() as u64, "Requests in flight at a worker.";
        counter worker_requests_total = |w| w.requests.load(Relaxed), "Requests a worker answered.";
        counter worker_connections_total = |w| w.endpoint.opened.load(Relaxed),
            "Connections opened to a worker, those of health checks aside.";
        counter worker_failures_total = |w| w.failures.load(Relaxed), "Attempts at a worker that failed.";
        gauge worker_cache_coverage = |w| w.cache_events.coverage().into(),
            "How much of a worker's cache its events tell: 0 nothing, 1 what they brought so far, 2 all of it.";
        gauge worker_cache_events_age_seconds = |w| w.cache_events.age().unwrap_or(0.0) as u64,
            "Seconds since the last batch of a worker's cache events; 0 before the first one.";
    };
    for (name, kind, help, read) in values {
        head(out, name, kind, help);
        for worker in fleet.iter() {
            sample(out, name, &label(worker, sees_urls), read(worker));
        }
    }
    let (name, help) = (
        "worker_time_to_first_byte_seconds",
        "From a request's head to the first bytes of the worker's answer.",
    );
    head(out, name, "histogram", help);
    for worker in fleet.iter() {
        let worker_name = escaped(&worker.name(sees_urls));
        histogram(out, name, "worker", &worker_name, &worker.ttfb.read());
    }
}
