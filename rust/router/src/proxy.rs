//! One request's way to a worker and back, with another attempt elsewhere while nothing was answered.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Version};

use crate::body::{Payload, ReadError, RequestBody, ResponseBody, Upload, discard};
use crate::forwarding;
use crate::lane::{Lane, Scratch};
use crate::policy::{Candidates, RequestKey};
use crate::reply::{self, Reply};
use crate::scan::scan;
use crate::upstream::Upstream;
use crate::worker::{Health, LoadGuard, Worker};

/// Names the worker that served a request.
pub const WORKER_HEADER: HeaderName = HeaderName::from_static("x-sglang-omni-worker");
const SESSION_HEADER: HeaderName = HeaderName::from_static("x-session-id");

/// Bodies up to this many bytes are held until the worker answers, so that they can be sent again. Of a
/// larger one only this much is held, to be searched for the routing key; the rest streams.
const HELD_BODY: usize = 1 << 20;

/// Attempts for a request, not counting workers that refused the connection while others were up.
const MAX_ATTEMPTS: usize = 4;

/// What became of one attempt.
enum Attempt {
    Answered(Response<Incoming>, Box<Upstream>),
    /// No connection could be made for want of descriptors, ports or memory here.
    Exhausted(String),
    /// Nothing reached the worker.
    Unsent(String),
    /// The connection ended after the request was sent and before an answer.
    Broken(String),
}

pub async fn forward(lane: &Rc<Lane>, request: Request<Incoming>) -> Reply {
    let shared = &lane.shared;
    let (mut parts, incoming) = request.into_parts();
    let limit = shared.config.max_body_bytes;
    if incoming.size_hint().lower() > limit {
        tokio::task::spawn_local(discard(incoming));
        return too_large(limit);
    }
    let is_json = is_json(&parts);
    let window = held_window(&incoming, is_json);
    let mut upload = match Upload::read(incoming, window, limit).await {
        Ok(upload) => upload,
        Err(ReadError::TooLarge(rest)) => {
            tokio::task::spawn_local(discard(rest));
            return too_large(limit);
        }
        Err(ReadError::Client(error)) => {
            return reply::error(
                StatusCode::BAD_REQUEST,
                &format!("the request body could not be read: {error}"),
            );
        }
    };
    parts.headers = forwarding::request_headers(std::mem::take(&mut parts.headers));
    let too_large_flag = upload.too_large();
    let text = if is_json {
        upload.read.clone()
    } else {
        Bytes::new()
    };

    let mut tried: Vec<u32> = Vec::new();
    let mut attempts = 0;
    let mut failure = String::new();
    while attempts < MAX_ATTEMPTS {
        let Some(worker) = choose(lane, &parts, &text, &tried) else {
            break;
        };
        attempts += 1;
        let load = LoadGuard::new(worker.clone());
        match attempt(lane, &worker, &parts, &mut upload).await {
            Attempt::Answered(response, upstream) => {
                let overloaded = matches!(
                    response.status(),
                    StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE
                );
                tried.push(worker.id);
                let again = overloaded && upload.is_whole() && attempts < MAX_ATTEMPTS;
                if again && has_other(lane, &tried) {
                    worker.failures.fetch_add(1, Relaxed);
                    shared.metrics.retries.fetch_add(1, Relaxed);
                    continue;
                }
                worker.requests.fetch_add(1, Relaxed);
                return answer(response, &worker, |incoming| {
                    ResponseBody::new(incoming, Some(upstream), lane.pool.clone(), load)
                });
            }
            Attempt::Exhausted(error) => {
                let message = format!("the router is out of resources: {error}");
                return reply::error(StatusCode::SERVICE_UNAVAILABLE, &message);
            }
            Attempt::Unsent(error) => {
                worker.failures.fetch_add(1, Relaxed);
                if crate::health::mark_down(&worker, &error) {
                    attempts -= 1;
                }
                failure = format!("{}: {error}", worker.url);
                tried.push(worker.id);
            }
            Attempt::Broken(error) => {
                if too_large_flag.get() {
                    return too_large(limit);
                }
                worker.failures.fetch_add(1, Relaxed);
                failure = format!("{}: {error}", worker.url);
                tried.push(worker.id);
                if !upload.is_whole() {
                    let message = format!(
                        "worker {failure} after part of the body was sent; it cannot be sent again"
                    );
                    return reply::error(StatusCode::BAD_GATEWAY, &message);
                }
            }
        }
        shared.metrics.retries.fetch_add(1, Relaxed);
    }
    no_worker(lane, &failure)
}

async fn attempt(lane: &Lane, worker: &Worker, parts: &Parts, upload: &mut Upload) -> Attempt {
    let mut upstream = match lane.pool.get(worker).await {
        Ok(upstream) => upstream,
        Err(error) => return not_connected(&error),
    };
    loop {
        let request = outgoing(worker, parts, upload.take());
        let mut error = match upstream.send(request).await {
            Ok(response) => return Attempt::Answered(response, upstream),
            Err(error) => error,
        };
        let unsent = error.take_message();
        let is_unsent = unsent.is_some();
        if let Some(request) = unsent {
            upload.rest = request.into_body().into_rest();
        }
        let text = error_text(error.error());
        // A worker may close an idle connection at the very moment it is used again; that says nothing
        // about the worker, which gets the request on a new one.
        if upstream.reused && (is_unsent || upload.is_whole()) {
            upstream = match lane.pool.open(worker).await {
                Ok(upstream) => upstream,
                Err(error) => return not_connected(&error),
            };
            continue;
        }
        return if is_unsent {
            Attempt::Unsent(text)
        } else {
            Attempt::Broken(text)
        };
    }
}

fn not_connected(error: &io::Error) -> Attempt {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::EADDRNOTAVAIL | libc::ENOBUFS | libc::ENOMEM) => {
            Attempt::Exhausted(error.to_string())
        }
        _ => Attempt::Unsent(error.to_string()),
    }
}

/// The error with what caused it.
fn error_text(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The request as the worker gets it: the client's, hop-by-hop headers aside.
fn outgoing(worker: &Worker, parts: &Parts, body: RequestBody) -> Request<RequestBody> {
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = parts.headers.clone();
    *request.extensions_mut() = parts.extensions.clone();
    if !request.headers().contains_key(HOST) {
        request.headers_mut().insert(HOST, worker.authority.clone());
    }
    request
}

/// A worker's answer as the client gets it.
pub fn answer(
    response: Response<Incoming>,
    worker: &Worker,
    body: impl FnOnce(Incoming) -> ResponseBody,
) -> Reply {
    let (mut parts, incoming) = response.into_parts();
    parts.headers = forwarding::response_headers(parts.headers);
    parts
        .headers
        .insert(WORKER_HEADER, worker.url_header.clone());
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Payload::Upstream(body(incoming)))
}

fn is_json(parts: &Parts) -> bool {
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .map(|value| value.as_bytes());
    content_type.is_some_and(|value| {
        value
            .get(..16)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"application/json"))
    })
}

/// How much of the body to hold: all of a short one, the start of a long one that may hold a routing key.
fn held_window(incoming: &Incoming, is_json: bool) -> usize {
    let is_short = incoming
        .size_hint()
        .upper()
        .is_some_and(|length| length <= HELD_BODY as u64);
    if is_json || is_short { HELD_BODY } else { 0 }
}

/// A worker for the request, none of `tried`: one that is up, or, when none is, any that is not draining:
/// the last worker is never shut out by a health check.
pub fn choose(lane: &Lane, parts: &Parts, body: &[u8], tried: &[u32]) -> Option<Arc<Worker>> {
    let shared = &lane.shared;
    let fleet = shared.fleet.read();
    let mut scratch = lane.scratch.borrow_mut();
    let Scratch { key, eligible } = &mut *scratch;
    key.clear();
    if !find_eligible(&fleet, tried, eligible) {
        return None;
    }
    let mut request = RequestKey::default();
    if shared.policy.reads_request() {
        let found = scan(body, key);
        let session = parts
            .headers
            .get(SESSION_HEADER)
            .map_or(found.user, |value| value.as_bytes());
        request = RequestKey {
            text: key,
            model: found.model,
            session,
        };
    }
    Some(
        shared
            .policy
            .pick(Candidates::new(&fleet, eligible), &request)
            .clone(),
    )
}

fn find_eligible(fleet: &[Arc<Worker>], tried: &[u32], eligible: &mut Vec<usize>) -> bool {
    let open = |worker: &Worker| !worker.is_draining() && !tried.contains(&worker.id);
    let positions = |wanted: &dyn Fn(&Worker) -> bool, eligible: &mut Vec<usize>| {
        eligible.clear();
        eligible.extend(
            fleet
                .iter()
                .enumerate()
                .filter(|(_, worker)| wanted(worker))
                .map(|(position, _)| position),
        );
        !eligible.is_empty()
    };
    positions(
        &|worker| open(worker) && worker.health() != Health::Down,
        eligible,
    ) || positions(&open, eligible)
}

fn has_other(lane: &Lane, tried: &[u32]) -> bool {
    let fleet = lane.shared.fleet.read();
    fleet.iter().any(|worker| {
        !worker.is_draining() && worker.health() != Health::Down && !tried.contains(&worker.id)
    })
}

pub fn too_large(limit: u64) -> Reply {
    let message = format!("the request body is larger than the limit of {limit} bytes");
    reply::error(StatusCode::PAYLOAD_TOO_LARGE, &message)
}

/// 503 for a request that no worker could take.
pub fn no_worker(lane: &Lane, failure: &str) -> Reply {
    lane.shared.metrics.unserved.fetch_add(1, Relaxed);
    let message = match failure {
        "" if lane.shared.fleet.read().is_empty() => {
            "the router has no workers; add one with POST /workers".to_owned()
        }
        "" => "every worker is draining".to_owned(),
        failure => format!("no worker could serve the request; the last one tried was {failure}"),
    };
    reply::error(StatusCode::SERVICE_UNAVAILABLE, &message)
}
