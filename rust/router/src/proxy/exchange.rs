//! One exchange with a client, from its request to the end of the answer: what is known of it once it is
//! over goes into the metrics and the access log.

use std::fmt::Display;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::{Method, Request, StatusCode, Uri, Version};
use serde_json::Value;

use crate::base::client::Client;
use crate::base::end::End;
use crate::base::headers::REQUEST_ID;
use crate::base::log::Level;
use crate::base::metrics::LaneMetrics;
use crate::base::request_id::RequestId;
use crate::base::route::Route;
use crate::fleet::worker::Worker;
use crate::proxy::body::Payload;
use crate::proxy::lane::Lane;
use crate::proxy::reply::{Reply, Why};

/// The status in metrics and logs of a request whose client did not wait for one.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Belongs to the request, then to the body of its answer; what it has gathered is recorded when it is
/// dropped. The clock is read when it begins and when the answer's first bytes come, and at the end if
/// that is later.
#[derive(Clone)]
pub struct Exchange {
    lane: Rc<Lane>,
    pub peer: SocketAddr,
    /// Whether its client is told where workers are.
    pub sees_urls: bool,
    pub client: Arc<Client>,
    id: RequestId,
    pub route: Route,
    is_head: bool,
    /// The version of HTTP that the client speaks: 1.0 has no chunks.
    version: Version,
    /// Only where requests are logged.
    target: Option<(Method, Uri)>,
    began: Instant,
    /// Whether it counts as in flight: it is on its way to a worker, or at one.
    is_in_flight: bool,
    /// Whether it holds one of a limited number of places in flight.
    has_place: bool,
    /// The worker whose answer the client gets, or the last one that was tried.
    pub worker: Option<Arc<Worker>>,
    /// How often the request was sent to a worker.
    pub attempts: u32,
    /// Bytes of the request's body, as far as they are known.
    pub received: u64,
    /// Bytes of the answer's body.
    pub sent: u64,
    status: u16,
    /// Whether the answer is a worker's and not the router's.
    is_from_worker: bool,
    /// What the router itself refused it for.
    why: Option<Box<str>>,
    first_byte: Option<Duration>,
    took: Option<Duration>,
    end: End,
    is_handed_on: bool,
}

impl Exchange {
    pub fn begin(
        lane: &Rc<Lane>,
        peer: SocketAddr,
        client: Arc<Client>,
        id: RequestId,
        request: &Request<Incoming>,
    ) -> Self {
        let is_logged = lane.proxy.settings.access_log;
        Exchange {
            lane: lane.clone(),
            peer,
            sees_urls: false,
            client,
            id,
            route: Route::of(request.uri().path()),
            is_head: request.method() == Method::HEAD,
            version: request.version(),
            target: is_logged.then(|| (request.method().clone(), request.uri().clone())),
            began: Instant::now(),
            is_in_flight: false,
            has_place: false,
            worker: None,
            attempts: 0,
            received: request.body().size_hint().exact().unwrap_or(0),
            sent: 0,
            status: CLIENT_CLOSED_REQUEST,
            is_from_worker: false,
            why: None,
            first_byte: None,
            took: None,
            end: End::ClientLeft,
            is_handed_on: false,
        }
    }

    /// Notes that it goes on to a worker, in one of a limited number of places or not.
    pub fn enters(&mut self, has_place: bool) {
        self.lane.metrics().in_flight.fetch_add(1, Relaxed);
        self.is_in_flight = true;
        self.has_place = has_place;
    }

    /// Notes another attempt, at this worker.
    pub fn tries(&mut self, worker: &Arc<Worker>) {
        self.attempts += 1;
        self.worker = Some(worker.clone());
    }

    /// Notes the head of the answer, and gives it the request's id.
    pub fn answers(&mut self, reply: &mut Reply) {
        self.status = reply.status().as_u16();
        self.is_from_worker = matches!(reply.body(), Payload::Upstream(_));
        self.id.settle(reply.headers().get(REQUEST_ID));
        reply
            .headers_mut()
            .insert(REQUEST_ID, self.id.value.clone());
        if let Some(Why(why)) = reply.extensions_mut().remove() {
            self.why = Some(why.into());
        }
    }

    /// Notes bytes of the answer's body, and whether they are the last.
    pub fn passes(&mut self, bytes: usize, is_last: bool) {
        self.sent += bytes as u64;
        if self.is_from_worker && self.first_byte.is_none() {
            let now = self.began.elapsed();
            self.first_byte = Some(now);
            if is_last {
                self.took = Some(now);
            }
        }
    }

    pub fn ends(&mut self, end: End) {
        self.end = end;
        if self.version < Version::HTTP_11 && matches!(end, End::WorkerCut | End::IdleTimeout) {
            self.client.cut();
        }
    }

    /// Whether the answer has no body, however long the one is that its headers announce.
    pub fn is_bodiless(&self) -> bool {
        self.is_head || matches!(self.status, 100..=199 | 204 | 304)
    }

    /// The same exchange for whoever goes on with it once the answer's head is out.
    pub fn hand_on(&mut self, status: StatusCode) -> Exchange {
        let mut rest = self.clone();
        rest.status = status.as_u16();
        self.is_handed_on = true;
        rest
    }

    fn record(&self, metrics: &LaneMetrics) {
        let took = self.took.unwrap_or_else(|| self.began.elapsed());
        // An answer without a body has come whole with its head.
        let is_whole = self.is_from_worker && self.end == End::Complete;
        let first_byte = self.first_byte.or(is_whole.then_some(took));
        metrics.finish(self.route, self.status, self.end, self.received, self.sent);
        metrics.observe(self.route, first_byte, took);
        if let (Some(worker), Some(first_byte)) = (&self.worker, first_byte) {
            worker.first_byte.observe(first_byte);
        }
        if let Some((method, uri)) = &self.target {
            self.log(method, uri, first_byte, took);
        }
        if self.end == End::WorkerCut {
            self.log_failure("the worker broke off its answer");
        } else if self.end == End::IdleTimeout {
            let limit = self.lane.proxy.settings.stream_idle_timeout.as_secs_f64();
            self.log_failure(&format!(
                "nothing more came in {limit} s (stream_idle_timeout)"
            ));
        } else if let Some(why) = self.why.as_deref().filter(|_| self.status >= 500) {
            self.log_failure(why);
        }
    }

    /// What the router or a worker is to blame for is logged, every request or not.
    fn log_failure(&self, why: &str) {
        let id = String::from_utf8_lossy(self.id.value.as_bytes());
        let mut fields: Vec<(&'static str, &dyn Display)> =
            vec![("id", &id), ("status", &self.status)];
        if let Some(worker) = &self.worker {
            fields.push(("worker", &worker.url));
        }
        fields.push(("why", &why));
        self.lane.proxy.log.warn("request failed", &fields);
    }

    fn log(&self, method: &Method, uri: &Uri, first_byte: Option<Duration>, took: Duration) {
        if !self.route.is_logged() {
            return;
        }
        let (method, uri) = (method.clone(), uri.clone());
        let (id, worker, peer) = (self.id.value.clone(), self.worker.clone(), self.peer);
        let (status, attempts, end) = (self.status, self.attempts, self.end);
        let (received, sent) = (self.received, self.sent);
        let fields = move || {
            let millis = |time: Duration| Value::from(time.as_micros() as f64 / 1000.0);
            vec![
                ("id", String::from_utf8_lossy(id.as_bytes()).into()),
                ("client", peer.to_string().into()),
                ("method", method.as_str().into()),
                // Without the query, which may hold what is nobody's business.
                ("path", uri.path().into()),
                ("status", status.into()),
                ("worker", worker.map(|worker| worker.url.clone()).into()),
                ("attempts", attempts.into()),
                ("bytes_in", received.into()),
                ("bytes_out", sent.into()),
                ("first_byte_ms", first_byte.map(millis).into()),
                ("duration_ms", millis(took)),
                ("end", end.name().into()),
            ]
        };
        self.lane
            .proxy
            .log
            .put(Level::Info, "request", Box::new(fields));
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.is_handed_on {
            return;
        }
        if self.is_in_flight {
            self.lane.metrics().in_flight.fetch_sub(1, Relaxed);
        }
        if self.has_place {
            self.lane.proxy.in_flight.leave();
        }
        self.record(self.lane.metrics());
    }
}
