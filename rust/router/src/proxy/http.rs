//! Forwards plain HTTP requests: reads as much of the client's body as is needed, then sends it to a worker.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Request, Version};
use serde_json::json;

use crate::base::form;
use crate::base::headers::has_media_type;
use crate::base::route::Route;
use crate::fleet::pending_heads::Asked;
use crate::fleet::worker::Worker;
use crate::proxy::attempt_loop::{self, Attempt, Outcome};
use crate::proxy::attempts::Attempts;
use crate::proxy::lane::Lane;
use crate::proxy::record::RequestRecord;
use crate::proxy::reply::{self, Reason, Refusal, Reply};
use crate::proxy::upload::Upload;
use crate::proxy::usage;
use crate::proxy::wish::Wish;
use crate::upstream::connection::{NoAnswer, Upstream, is_exhaustion};
use crate::upstream::forwarding;
use crate::upstream::request_body::{BodyError, Fault, RequestBody, discard};

/// Bodies up to this many bytes are held until the worker answers, so that they can be sent again. Of a larger body
/// only this much is held, to be searched for the routing key; the rest streams.
const HELD_BODY: usize = 1 << 20;

pub async fn forward(
    lane: &Rc<Lane>,
    record: &mut RequestRecord,
    request: Request<Incoming>,
    wish: Option<Box<Wish>>,
) -> Reply {
    let (mut parts, incoming) = request.into_parts();
    let limit = lane.proxy.settings.max_body_bytes;
    if incoming.size_hint().lower() > limit {
        tokio::task::spawn_local(discard(incoming));
        return too_large(limit);
    }
    let kind = Kind::of(lane, &parts.headers);
    let window = held_window(lane, &incoming, kind);
    let upload = match Upload::read(lane, incoming, record.client.clone(), window).await {
        Ok(upload) => upload,
        Err(BodyError::TooLarge(rest)) => {
            tokio::task::spawn_local(discard(rest));
            return too_large(limit);
        }
        Err(BodyError::Stalled) => return stalled(),
        Err(BodyError::Client(error)) => return broken_off(&error.to_string()),
        Err(BodyError::Full(rest)) => {
            tokio::task::spawn_local(discard(rest));
            return full(lane);
        }
    };
    // Only once the body is read: a client that is slow to send must not keep others out.
    let tokens = || match kind {
        Kind::Json => usage::tokens(&upload.read),
        Kind::Form | Kind::Unread => usage::tokens(b""),
    };
    match lane.proxy.in_flight.enter(wish, tokens).await {
        Ok(permit) => record.admit(permit),
        Err(full) => return Refusal::from(full).into_reply(),
    }
    record.received = record.received.max(upload.read.len() as u64);
    parts.headers = forwarding::request_headers(std::mem::take(&mut parts.headers));
    forwarding::note_hop(parts.version, &mut parts.headers);
    let text = match kind {
        Kind::Json => upload.read.clone(),
        Kind::Form => as_json(&parts.headers, &upload.read),
        Kind::Unread => Bytes::new(),
    };
    let mut attempt = HttpAttempt {
        lane,
        parts: &parts,
        fault: upload.fault(),
        upload,
        route: record.route,
    };
    match attempt_loop::run(lane, record, &parts, &text, &mut attempt).await {
        Ok(answer) => answer.into_reply(lane, record.sees_urls),
        Err(reply) => reply,
    }
}

struct HttpAttempt<'a> {
    lane: &'a Lane,
    parts: &'a Parts,
    upload: Upload,
    /// The client's fault with the rest of its body, if there turns out to be one.
    fault: Rc<Cell<Option<Fault>>>,
    route: Route,
}

/// No answer has begun on a connection.
struct NotBegun {
    /// True if certainly nothing of the request was sent.
    is_unsent: bool,
    why: String,
}

impl NotBegun {
    fn into_outcome(self) -> Outcome {
        match self.is_unsent {
            true => Outcome::NoConnection(io::Error::other(self.why)),
            false => Outcome::Reset(self.why),
        }
    }
}

impl HttpAttempt<'_> {
    async fn connect(&self, worker: &Worker) -> io::Result<Box<Upstream>> {
        let (pool, limit) = (&self.lane.pool, worker.connect_limit());
        // The worker may close an idle connection at this very moment, so a body that can be sent only once gets a new
        // connection.
        match self.upload.is_whole() {
            true => pool.get(&worker.endpoint, limit).await,
            false => pool.open(&worker.endpoint, limit).await,
        }
    }

    async fn ask(
        &mut self,
        mut upstream: Box<Upstream>,
        worker: &Worker,
        attempts: &Attempts<'_>,
    ) -> Result<Outcome, NotBegun> {
        let upload = &mut self.upload;
        let whole = upload.is_whole().then(|| upload.read.clone());
        let asked = Asked {
            route: self.route,
            body: whole.as_ref(),
            deadline: attempts.deadline,
        };
        let request = outgoing(worker, self.parts, upload.take());
        // Only a whole request waits for first bytes: a client that is still sending may wait for the head.
        let answer = upstream.ask(request, whole.is_some());
        let may_move = || attempts.may_move(worker);
        let pending = &self.lane.pending_heads;
        match pending.head(worker, &asked, may_move, answer).await {
            Ok(Ok(response)) => Ok(Outcome::Answered(response, Some(upstream))),
            Ok(Err(NoAnswer { unsent, why })) => {
                let is_unsent = unsent.is_some();
                if let Some(request) = unsent {
                    upload.rest = request.into_body().into_rest();
                }
                Err(NotBegun { is_unsent, why })
            }
            Err(gave_up) => Ok(Outcome::GaveUp(gave_up)),
        }
    }

    /// A new connection in place of a kept one.
    async fn connect_again(
        &self,
        worker: &Worker,
        before: NotBegun,
    ) -> Result<Box<Upstream>, Outcome> {
        let opened = self
            .lane
            .pool
            .open(&worker.endpoint, worker.connect_limit());
        opened.await.map_err(|error| {
            match before.is_unsent || is_exhaustion(&error) {
                true => Outcome::NoConnection(error),
                // The worker took some or all of the request, and is gone.
                false => Outcome::Reset(format!("{}, then {error}", before.why)),
            }
        })
    }
}

impl Attempt for HttpAttempt<'_> {
    async fn send(&mut self, worker: &Worker, attempts: &mut Attempts<'_>) -> Outcome {
        let mut upstream = match self.connect(worker).await {
            Ok(upstream) => upstream,
            Err(error) => return Outcome::NoConnection(error),
        };
        loop {
            let was_kept = upstream.reused;
            let failed = match self.ask(upstream, worker, attempts).await {
                Ok(outcome) => return outcome,
                Err(failed) => failed,
            };
            // A worker may close an idle connection at the very moment it is reused. That says nothing about the
            // worker, which gets the request on a new connection. It may also have read the request.
            let is_safe = self.parts.method.is_safe();
            if !(was_kept && (failed.is_unsent || attempts.may_resend(is_safe))) {
                return failed.into_outcome();
            }
            let is_unsent = failed.is_unsent;
            upstream = match self.connect_again(worker, failed).await {
                Ok(upstream) => upstream,
                Err(outcome) => return outcome,
            };
            if !is_unsent {
                attempts.resent();
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.upload.is_whole()
    }

    fn fault(&self) -> Option<Reply> {
        Some(match self.fault.get()? {
            Fault::TooLarge => too_large(self.lane.proxy.settings.max_body_bytes),
            Fault::Stalled => stalled(),
            Fault::Left => broken_off("it ended early"),
        })
    }
}

/// The request for the worker.
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

/// What is read of a body to choose its worker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Json,
    /// A multipart form's model.
    Form,
    Unread,
}

impl Kind {
    fn of(lane: &Lane, headers: &HeaderMap) -> Kind {
        if has_media_type(headers, "application/json") {
            Kind::Json
        } else if lane.proxy.models.differ() && has_media_type(headers, "multipart/form-data") {
            Kind::Form
        } else {
            Kind::Unread
        }
    }
}

/// The model of a form, as far as that was read, in the form of a JSON body.
fn as_json(headers: &HeaderMap, form: &[u8]) -> Bytes {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let model = content_type.and_then(|kind| form::field(kind, form, "model"));
    model.map_or_else(Bytes::new, |model| {
        let model = String::from_utf8_lossy(model.trim_ascii());
        json!({"model": model}).to_string().into()
    })
}

/// How much of the body to hold: all of a short one, and the start of a long one that may hold a routing key.
/// If permits are limited, also the start of any other: its client must send something before it takes one.
fn held_window(lane: &Lane, incoming: &Incoming, kind: Kind) -> usize {
    let length = incoming.size_hint().upper();
    let is_short = length.is_some_and(|length| length <= HELD_BODY as u64);
    match kind != Kind::Unread || is_short || lane.proxy.in_flight.is_limited() {
        true => HELD_BODY,
        false => 0,
    }
}

/// 408 for a client that sent no more of its body.
fn stalled() -> Reply {
    let message = "the rest of the request body did not arrive in time";
    reply::last_error(Reason::RequestTimeout, message)
}

/// 503 while the router holds as many bytes of bodies as it may.
fn full(lane: &Lane) -> Reply {
    let limit = lane.proxy.settings.max_held_bytes;
    let message = format!(
        "the router holds {limit} bytes of request bodies, which is the limit (max_held_bytes)"
    );
    reply::error(Reason::RouterOutOfResources, &message)
}

fn too_large(limit: u64) -> Reply {
    let message = format!("the request body is larger than the limit of {limit} bytes");
    reply::error(Reason::RequestTooLarge, &message)
}

/// 400 for a client that did not send its body to the end; most have left.
fn broken_off(why: &str) -> Reply {
    let message = format!("the request body could not be read: {why}");
    reply::error(Reason::InvalidBody, &message)
}
