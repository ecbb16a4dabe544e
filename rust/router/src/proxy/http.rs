//! One request's way to a worker and back, with another attempt elsewhere while nothing was answered.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Version};

use crate::base::headers;
use crate::base::route::Route;
use crate::fleet::waiting::{Asked, GaveUp};
use crate::fleet::worker::{LoadGuard, Worker};
use crate::proxy::attempts::Tries;
use crate::proxy::body::{Payload, ResponseBody};
use crate::proxy::choice::Failure;
use crate::proxy::lane::Lane;
use crate::proxy::record::RequestRecord;
use crate::proxy::reply::{self, Reason, Reply};
use crate::proxy::upload::Upload;
use crate::upstream::connection::{Begun, Upstream, is_exhaustion};
use crate::upstream::forwarding;
use crate::upstream::request_body::{Fault, ReadError, RequestBody, discard};

/// Bodies up to this many bytes are held until the worker answers, so that they can be sent again. Of a
/// larger one only this much is held, to be searched for the routing key; the rest streams.
const HELD_BODY: usize = 1 << 20;

/// What became of one attempt.
enum Attempt {
    Answered(Response<Begun>, Box<Upstream>),
    /// Nothing reached the worker.
    NoConnection(io::Error),
    /// The connection ended after the request was sent, at least in part, and before an answer.
    Broken(String),
    /// No answer for too long.
    GaveUp(GaveUp),
}

pub async fn forward(
    lane: &Rc<Lane>,
    record: &mut RequestRecord,
    request: Request<Incoming>,
) -> Reply {
    let (mut parts, incoming) = request.into_parts();
    let limit = lane.proxy.settings.max_body_bytes;
    if incoming.size_hint().lower() > limit {
        tokio::task::spawn_local(discard(incoming));
        return too_large(limit);
    }
    let is_json = is_json(&parts);
    let window = held_window(lane, &incoming, is_json);
    let mut upload = match Upload::read(lane, incoming, record.client.clone(), window).await {
        Ok(upload) => upload,
        Err(ReadError::TooLarge(rest)) => {
            tokio::task::spawn_local(discard(rest));
            return too_large(limit);
        }
        Err(ReadError::Stalled) => return stalled(),
        Err(ReadError::Client(error)) => return broken_off(&error.to_string()),
        Err(ReadError::Full(rest)) => {
            tokio::task::spawn_local(discard(rest));
            return full(lane);
        }
    };
    // Not before: clients that are slow to send keep no others out.
    match lane.proxy.in_flight.enter().await {
        Ok(permit) => record.enters(permit),
        Err(refusal) => return refusal.into_reply(),
    }
    record.received = record.received.max(upload.read.len() as u64);
    parts.headers = forwarding::request_headers(std::mem::take(&mut parts.headers));
    forwarding::note_hop(parts.version, &mut parts.headers);
    let fault = upload.fault();
    let text = if is_json {
        upload.read.clone()
    } else {
        Bytes::new()
    };

    if let Some(model) = lane.proxy.models.unknown(&lane.pool, &parts, &text).await {
        return reply::unknown_model(&model);
    }
    let mut tries = Tries::new(lane, record.sees_urls);
    while let Some(worker) = tries.choose(&parts, &text) {
        record.tries(&worker);
        let load = LoadGuard::new(worker.clone());
        match attempt(lane, &worker, &parts, &mut upload, &mut tries, record.route).await {
            Attempt::Answered(response, upstream) => {
                if tries.again_after(&worker, &response, upload.is_whole()) {
                    continue;
                }
                let receipt = tries.settle(&response);
                return answer(response, &worker, record.sees_urls, |incoming| {
                    ResponseBody::new(incoming, Some(upstream), lane.clone(), load)
                        .reading_usage(receipt)
                });
            }
            Attempt::NoConnection(error) if is_exhaustion(&error) => return exhausted(&error),
            Attempt::NoConnection(error) => tries.unsent(&worker, &error),
            Attempt::GaveUp(GaveUp::Expired) => return tries.expired(&worker),
            Attempt::GaveUp(GaveUp::Hung) => tries.moved(&worker),
            Attempt::Broken(error) => {
                match fault.get() {
                    Some(Fault::TooLarge) => return too_large(limit),
                    Some(Fault::Stalled) => return stalled(),
                    Some(Fault::Left) => return broken_off("it ended early"),
                    None => {}
                }
                if !upload.is_whole() {
                    let failure = Failure::of(&worker, &error, record.sees_urls);
                    let say = |what: &str| {
                        format!("part of the body was sent, and it cannot be sent again: {what}")
                    };
                    tries.broken(&worker, &error);
                    let (shown, logged) = (say(&failure.shown), say(&failure.logged));
                    return reply::error_logged(Reason::WorkerFailed, &shown, logged);
                }
                if !tries.broken(&worker, &error) {
                    break;
                }
            }
        }
    }
    tries.give_up()
}

async fn attempt(
    lane: &Lane,
    worker: &Worker,
    parts: &Parts,
    upload: &mut Upload,
    tries: &mut Tries<'_>,
    route: Route,
) -> Attempt {
    let (endpoint, limit) = (&worker.endpoint, worker.connect_limit());
    // An idle connection may be closed by its worker at this very moment: nothing for what can be sent once.
    let connection = match upload.is_whole() {
        true => lane.pool.get(endpoint, limit).await,
        false => lane.pool.open(endpoint, limit).await,
    };
    let mut upstream = match connection {
        Ok(upstream) => upstream,
        Err(error) => return Attempt::NoConnection(error),
    };
    let whole = upload.is_whole().then(|| upload.read.clone());
    let asked = Asked {
        route,
        body: whole.as_ref(),
        deadline: tries.deadline,
    };
    loop {
        let request = outgoing(worker, parts, upload.take());
        // A client that is still sending may wait for the head before it goes on.
        let answer = upstream.ask(request, upload.is_whole());
        let may_move = || tries.may_move(worker);
        let failed = match lane.waiting.head(worker, &asked, may_move, answer).await {
            Ok(Ok(response)) => return Attempt::Answered(response, upstream),
            Ok(Err(failed)) => failed,
            Err(gave_up) => return Attempt::GaveUp(gave_up),
        };
        let is_unsent = failed.unsent.is_some();
        if let Some(request) = failed.unsent {
            upload.rest = request.into_body().into_rest();
        }
        // A worker may close an idle connection at the very moment it is used again; that says nothing
        // about the worker, which gets the request on a new one. It may also have read the request.
        if upstream.reused && (is_unsent || tries.may_resend(parts.method.is_safe())) {
            upstream = match lane.pool.open(endpoint, limit).await {
                Ok(upstream) => {
                    if !is_unsent {
                        tries.resent();
                    }
                    upstream
                }
                // It took the request, or some of it, and is gone.
                Err(error) if !is_unsent && !is_exhaustion(&error) => {
                    return Attempt::Broken(format!("{}, then {error}", failed.why));
                }
                Err(error) => return Attempt::NoConnection(error),
            };
            continue;
        }
        return if is_unsent {
            Attempt::NoConnection(io::Error::other(failed.why))
        } else {
            Attempt::Broken(failed.why)
        };
    }
}

pub fn exhausted(error: &io::Error) -> Reply {
    let message = format!("the router is out of resources: {error}");
    reply::error(Reason::RouterOutOfResources, &message)
}

/// The request as the worker gets it: the client's, hop-by-hop headers aside.
fn outgoing(worker: &Worker, parts: &Parts, body: RequestBody) -> Request<RequestBody> {
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = parts.headers.clone();
    *request.extensions_mut() = parts.extensions.clone();
    worker.authorize(request.headers_mut());
    if !request.headers().contains_key(HOST) {
        request.headers_mut().insert(HOST, worker.authority.clone());
    }
    request
}

/// A worker's answer as the client gets it.
pub fn answer(
    response: Response<Begun>,
    worker: &Worker,
    sees_urls: bool,
    body: impl FnOnce(Begun) -> ResponseBody,
) -> Reply {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        || !forwarding::has_known_coding(response.headers())
    {
        let message = format!(
            "worker {} answered with a protocol or a transfer coding that the request did not ask for",
            worker.name(sees_urls)
        );
        return reply::error(Reason::InvalidWorkerAnswer, &message);
    }
    let (mut parts, begun) = response.into_parts();
    parts.headers = forwarding::response_headers(parts.headers);
    parts
        .headers
        .insert(headers::WORKER, name_header(worker, sees_urls));
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Payload::Upstream(body(begun)))
}

/// What a worker is called in `headers::WORKER`.
pub fn name_header(worker: &Worker, sees_urls: bool) -> HeaderValue {
    match sees_urls {
        true => worker.url_header.clone(),
        false => worker.id.into(),
    }
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

/// How much of the body to hold: all of a short one, the start of a long one that may hold a routing key, or
/// that is to show that its client sends it before it takes one of few places.
fn held_window(lane: &Lane, incoming: &Incoming, is_json: bool) -> usize {
    let is_short = incoming
        .size_hint()
        .upper()
        .is_some_and(|length| length <= HELD_BODY as u64);
    let is_limited = lane.proxy.in_flight.is_limited();
    if is_json || is_short || is_limited {
        HELD_BODY
    } else {
        0
    }
}

/// 408 for a client that sent no more of its body.
fn stalled() -> Reply {
    let message = "the rest of the request body did not arrive in time";
    reply::last_error(Reason::RequestTimeout, message)
}

/// 503 while the router holds as much of bodies as it may.
fn full(lane: &Lane) -> Reply {
    let limit = lane.proxy.settings.max_held_bytes;
    let message = format!(
        "the router holds {limit} bytes of request bodies, which is the limit (max_held_bytes)"
    );
    reply::error(Reason::RouterOutOfResources, &message)
}

pub fn too_large(limit: u64) -> Reply {
    let message = format!("the request body is larger than the limit of {limit} bytes");
    reply::error(Reason::RequestTooLarge, &message)
}

/// For a client that does not end its body as it should; most have left.
fn broken_off(why: &str) -> Reply {
    let message = format!("the request body could not be read: {why}");
    reply::error(Reason::InvalidBody, &message)
}
