//! The router's own endpoints. Every other path belongs to the workers.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};

use crate::lane::Lane;
use crate::reply::{self, Reply};
use crate::standing::Health;
use crate::worker::Worker;
use crate::{metrics, models};

const BODY_LIMIT: usize = 64 << 10;

/// Answers a request for the router itself, or gives it back.
pub async fn answer(
    lane: &Rc<Lane>,
    request: Request<Incoming>,
) -> Result<Reply, Request<Incoming>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/health" if is_read => Ok(health(lane)),
        "/metrics" if is_read => Ok(reply::text(
            StatusCode::OK,
            "text/plain; version=0.0.4",
            metrics::render(&lane.shared),
        )),
        "/v1/models" if is_read => Ok(models::merged(lane, request.headers()).await),
        "/workers" => Ok(match *request.method() {
            Method::GET | Method::HEAD => list(lane),
            Method::POST => with_worker_url(request, |url| add(lane, url)).await,
            Method::DELETE => with_worker_url(request, |url| remove(lane, url)).await,
            _ => not_allowed("GET, POST, DELETE"),
        }),
        "/workers/drain" => Ok(match *request.method() {
            Method::POST => with_worker_url(request, |url| drain(lane, url)).await,
            _ => not_allowed("POST"),
        }),
        _ => Err(request),
    }
}

fn not_allowed(methods: &'static str) -> Reply {
    let mut reply = reply::error(
        StatusCode::METHOD_NOT_ALLOWED,
        &format!("this path takes {methods}"),
    );
    reply
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(methods));
    reply
}

fn health(lane: &Lane) -> Reply {
    let fleet = lane.shared.fleet.read();
    let healthy = fleet
        .iter()
        .filter(|worker| worker.health() == Health::Up && !worker.is_draining())
        .count();
    let (status, word) = match healthy {
        0 => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy"),
        _ => (StatusCode::OK, "healthy"),
    };
    reply::json(
        status,
        &json!({"status": word, "workers": {"healthy": healthy, "total": fleet.len()}}),
    )
}

fn describe(worker: &Worker) -> Value {
    json!({
        "url": worker.url,
        "healthy": worker.health() == Health::Up,
        "state": worker.health().name(),
        "draining": worker.is_draining(),
        "load": worker.load(),
        "requests": worker.requests.load(Relaxed),
        "failures": worker.failures.load(Relaxed),
    })
}

fn list(lane: &Lane) -> Reply {
    let fleet = lane.shared.fleet.read();
    let workers: Vec<Value> = fleet.iter().map(|worker| describe(worker)).collect();
    reply::json(
        StatusCode::OK,
        &json!({"workers": workers, "policy": lane.shared.config.policy.name()}),
    )
}

/// Finds the worker's URL in `{"url": ...}` or `?url=...` and hands it on in its normal form.
async fn with_worker_url(request: Request<Incoming>, then: impl FnOnce(Worker) -> Reply) -> Reply {
    let from_query = request.uri().query().and_then(|query| {
        let value = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("url="))?;
        Some(percent_decode(value))
    });
    let url = match from_query {
        Some(url) => url,
        None => match url_in_body(request).await {
            Ok(url) => url,
            Err(message) => return reply::error(StatusCode::BAD_REQUEST, &message),
        },
    };
    match Worker::parse(&url) {
        Ok(worker) => then(worker),
        Err(error) => reply::error(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

async fn url_in_body(request: Request<Incoming>) -> Result<String, String> {
    let right = "the right form is {\"url\": \"http://host:port\"}";
    let body = Limited::new(request.into_body(), BODY_LIMIT);
    let bytes = body
        .collect()
        .await
        .map_err(|error| format!("the body could not be read: {error}"))?
        .to_bytes();
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| format!("the body is not JSON ({error}); {right}"))?;
    match value.get("url") {
        Some(Value::String(url)) => Ok(url.clone()),
        Some(_) => Err(format!("url: is not a string; {right}")),
        None => Err(format!("url: is missing; {right}")),
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let decoded = (first == b'%')
            .then(|| after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok()))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(decoded.unwrap_or(first));
        rest = if decoded.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn add(lane: &Lane, worker: Worker) -> Reply {
    let (worker, is_new) = lane.shared.fleet.add(worker);
    reply::json(
        if is_new {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        },
        &describe(&worker),
    )
}

fn unknown(lane: &Lane, worker: &Worker) -> Reply {
    let fleet = lane.shared.fleet.read();
    let known: Vec<&str> = fleet.iter().map(|worker| worker.url.as_str()).collect();
    let message = format!(
        "url: no worker {}; the workers are: {}",
        worker.url,
        known.join(", ")
    );
    reply::error(StatusCode::NOT_FOUND, &message)
}

/// Takes a worker out of the list at once; requests it is serving go on to their end.
fn remove(lane: &Lane, worker: Worker) -> Reply {
    let Some(removed) = lane.shared.fleet.remove(&worker.url) else {
        return unknown(lane, &worker);
    };
    removed.set_draining(true);
    lane.shared.policy.maintain(&lane.shared.fleet.read());
    reply::json(StatusCode::OK, &describe(&removed))
}

/// Gives a worker no more requests but keeps it in the list, where its load tells when it is idle.
/// Adding it again returns it to service.
fn drain(lane: &Lane, worker: Worker) -> Reply {
    let known: Option<Arc<Worker>> = lane.shared.fleet.find(&worker.url);
    let Some(known) = known else {
        return unknown(lane, &worker);
    };
    known.set_draining(true);
    reply::json(StatusCode::OK, &describe(&known))
}

#[cfg(test)]
mod tests {
    use super::percent_decode;

    #[test]
    fn decodes_urls() {
        assert_eq!(percent_decode("http%3A%2F%2Fa%3a1"), "http://a:1");
        assert_eq!(percent_decode("100%"), "100%");
        assert_eq!(percent_decode("%zz%2"), "%zz%2");
    }
}
