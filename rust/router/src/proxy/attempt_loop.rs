//! The loop of attempts: sends a request to one worker after another until one answers or no other may have it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use hyper::Response;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{StatusCode, Version};
use sglang_omni_policy::Receipt;

use crate::base::headers;
use crate::fleet::pending_heads::GaveUp;
use crate::fleet::worker::{LoadGuard, Worker};
use crate::proxy::attempts::Attempts;
use crate::proxy::lane::Lane;
use crate::proxy::payload::{Payload, ResponseBody};
use crate::proxy::record::RequestRecord;
use crate::proxy::reply::{self, Reason, Reply};
use crate::upstream::connection::{Begun, Upstream, is_exhaustion};
use crate::upstream::forwarding;

/// The outcome of one attempt.
pub enum Outcome {
    /// With the connection that carries the answer, unless something else drives that.
    Answered(Response<Begun>, Option<Box<Upstream>>),
    /// Nothing reached the worker.
    NoConnection(io::Error),
    /// The connection ended after the request was sent, at least in part, and before an answer.
    Reset(String),
    /// No answer for too long.
    GaveUp(GaveUp),
}

/// A request that can be sent to a worker: as it is (`http`), or to change protocols (`upgrade`).
pub trait Attempt {
    /// Sends it to the worker and waits for the answer to begin.
    async fn send(&mut self, worker: &Worker, attempts: &mut Attempts<'_>) -> Outcome;

    /// Whether all of it is at hand, so that it can be sent again.
    fn is_whole(&self) -> bool {
        true
    }

    /// The answer to the client if the client itself caused the connection to end.
    fn fault(&self) -> Option<Reply> {
        None
    }
}

/// A worker's answer on its way to the client.
pub struct WorkerAnswer {
    pub response: Response<Begun>,
    pub worker: Arc<Worker>,
    pub load: LoadGuard,
    upstream: Option<Box<Upstream>>,
    /// Present if the answer may say how much the worker had cached.
    receipt: Option<Receipt>,
}

/// Returns a worker's answer, or the router's own if no worker gave one. `text` is searched for the routing key.
pub async fn run(
    lane: &Lane,
    record: &mut RequestRecord,
    parts: &Parts,
    text: &[u8],
    attempt: &mut impl Attempt,
) -> Result<WorkerAnswer, Reply> {
    if let Some(model) = lane.proxy.models.unknown(&lane.pool, parts, text).await {
        return Err(reply::unknown_model(&model));
    }
    let mut attempts = Attempts::new(lane, record.sees_urls);
    while let Some(worker) = attempts.choose(parts, text) {
        record.begin_attempt(&worker);
        let load = LoadGuard::new(worker.clone());
        match attempt.send(&worker, &mut attempts).await {
            Outcome::Answered(response, upstream) => {
                if attempts.on_response(&worker, &response, attempt.is_whole()) {
                    if let Some(upstream) = upstream {
                        lane.pool.finish(response.into_body(), upstream);
                    }
                    continue;
                }
                return Ok(WorkerAnswer {
                    receipt: attempts.settle(&response),
                    response,
                    worker,
                    load,
                    upstream,
                });
            }
            Outcome::NoConnection(error) if is_exhaustion(&error) => {
                let message = format!("the router is out of resources: {error}");
                return Err(reply::error(Reason::RouterOutOfResources, &message));
            }
            Outcome::NoConnection(error) => attempts.on_connect_error(&worker, &error),
            Outcome::GaveUp(GaveUp::Expired) => return Err(attempts.on_timeout(&worker)),
            Outcome::GaveUp(GaveUp::Hung) => attempts.on_hung(&worker),
            Outcome::Reset(error) => {
                if let Some(reply) = attempt.fault() {
                    return Err(reply);
                }
                let may_retry = attempts.on_reset(&worker, &error);
                if !attempt.is_whole() {
                    return Err(attempts.cannot_resend());
                }
                if !may_retry {
                    break;
                }
            }
        }
    }
    Err(attempts.give_up())
}

impl WorkerAnswer {
    /// The answer in the form for the client.
    pub fn into_reply(self, lane: &Rc<Lane>, sees_urls: bool) -> Reply {
        let WorkerAnswer {
            response, worker, ..
        } = self;
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
            .insert(headers::WORKER, name_header(&worker, sees_urls));
        parts.version = Version::HTTP_11;
        let body = ResponseBody::new(begun, self.upstream, lane.clone(), self.load)
            .reading_usage(self.receipt);
        Response::from_parts(parts, Payload::Upstream(body))
    }
}

/// A worker's name for `headers::WORKER`.
pub fn name_header(worker: &Worker, sees_urls: bool) -> HeaderValue {
    match sees_urls {
        true => worker.url_header.clone(),
        false => worker.id.into(),
    }
}
