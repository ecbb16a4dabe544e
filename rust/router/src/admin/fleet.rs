//! `/fleet`: what any client may know of the fleet, for the page that draws it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde_json::{Map, Value, json};
use sglang_omni_policy::MetricValue;

use super::Admin;
use crate::fleet::fan_out::{Question, ask};
use crate::fleet::health_flags::Health;
use crate::fleet::worker::Worker;
use crate::proxy::choice::{LastFailure, no_worker};
use crate::proxy::lane::Lane;
use crate::proxy::reply::{self, Reason, Reply};

/// What is passed on of a worker's own paths, which tell no more than clients of that worker may know.
const OF_WORKERS: [&str; 3] = ["/pipeline", "/pipeline/load", REQUESTS];
const REQUESTS: &str = "/pipeline/requests";

/// Answers `/fleet` and the paths below it. `target`: the path and the query.
pub async fn answer(
    lane: &Rc<Lane>,
    admin: &Admin,
    target: &str,
    headers: &HeaderMap,
    sees_urls: bool,
) -> Reply {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    match path {
        "/fleet" => return overview(lane, admin, sees_urls),
        "/fleet/requests" => return requests(lane, query, headers, sees_urls).await,
        _ => (),
    }
    let rest = path.strip_prefix("/fleet/").unwrap_or_default();
    let (id, end) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match (id.parse::<u32>(), OF_WORKERS.contains(&end)) {
        (Ok(id), true) => of_worker(lane, id, &format!("{end}{query}"), headers, sees_urls).await,
        _ => reply::error(
            Reason::InvalidParameter,
            "the fleet's paths are /fleet, /fleet/requests?id=ID, /fleet/WORKER/pipeline, and /load and \
             /requests?id=ID below that; WORKER is a worker's id in /fleet",
        ),
    }
}

/// The router's load, its workers and what its policy counts.
fn overview(lane: &Lane, admin: &Admin, sees_urls: bool) -> Reply {
    let (proxy, fleet) = (&lane.proxy, lane.proxy.fleet.read());
    let mut workers: Vec<Value> = fleet
        .iter()
        .map(|worker| describe(worker, sees_urls))
        .collect();
    let mut counts = Map::new();
    for metric in proxy.policy.metrics() {
        match metric.value {
            MetricValue::Counter(value) | MetricValue::Gauge(value) => {
                counts.insert(metric.name.to_owned(), json!(value));
            }
            MetricValue::GaugeBySlot(values) => {
                for (worker, told) in fleet.iter().zip(&mut workers) {
                    told[metric.name] = json!(values.get(worker.slot() as usize).unwrap_or(&0));
                }
            }
        }
    }
    reply::json(
        StatusCode::OK,
        &json!({
            "policy": admin.policy,
            "requests": {"running": proxy.metrics.in_flight(), "waiting": proxy.in_flight.waiting()},
            "counts": counts,
            "workers": workers,
        }),
    )
}

fn describe(worker: &Worker, sees_urls: bool) -> Value {
    let mut told = json!({
        "id": worker.id,
        "state": worker.health().name(),
        "draining": worker.is_draining(),
        "load": worker.load(),
        "requests": worker.requests.load(Relaxed),
        "failures": worker.failures.load(Relaxed),
    });
    if sees_urls {
        told["url"] = json!(worker.url);
    }
    told
}

/// A worker's own answer to one of its paths.
async fn of_worker(
    lane: &Rc<Lane>,
    id: u32,
    target: &str,
    headers: &HeaderMap,
    sees_urls: bool,
) -> Reply {
    let fleet = lane.proxy.fleet.read();
    let found = fleet.iter().find(|worker| worker.id == id).cloned();
    drop(fleet);
    let Some(worker) = found else {
        let message = format!("no worker {id}; /fleet lists those that there are");
        return reply::error(Reason::WorkerNotFound, &message);
    };
    let question = Question::get(target).asked_by(headers).frequent();
    let answers = ask(&lane.pool, vec![worker], &question).await;
    let answer = &answers[0];
    match &answer.outcome {
        Ok((status, body)) => {
            let text = String::from_utf8_lossy(body).into_owned();
            reply::text(*status, "application/json", text)
        }
        Err(error) => {
            let name = answer.worker.name(sees_urls);
            let why = if sees_urls { error } else { "no answer" };
            reply::error_logged(
                Reason::WorkerFailed,
                &format!("worker {name} tells nothing: {why}"),
                format!("{}: {error}", answer.worker.url),
            )
        }
    }
}

/// Where a request is and was, with the id of the worker that has it. Only that worker knows, so all are asked.
async fn requests(lane: &Rc<Lane>, query: &str, headers: &HeaderMap, sees_urls: bool) -> Reply {
    let fleet = lane.proxy.fleet.read();
    let may_answer =
        |worker: &&Arc<Worker>| !matches!(worker.health(), Health::Down | Health::Loop);
    let workers: Vec<Arc<Worker>> = fleet.iter().filter(may_answer).cloned().collect();
    drop(fleet);
    if workers.is_empty() {
        return no_worker(lane, &LastFailure::default(), sees_urls);
    }
    let question = Question::get(&format!("{REQUESTS}{query}"))
        .asked_by(headers)
        .frequent();
    let answers = ask(&lane.pool, workers, &question).await;
    let mut known = Vec::new();
    for answer in &answers {
        let told = answer.json().map(|mut body| body["requests"].take());
        for mut request in told.and_then(list).unwrap_or_default() {
            request["worker"] = json!(answer.worker.id);
            known.push(request);
        }
    }
    reply::json(StatusCode::OK, &json!({"requests": known}))
}

/// A list of objects.
fn list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(values) => Some(values.into_iter().filter(Value::is_object).collect()),
        _ => None,
    }
}
