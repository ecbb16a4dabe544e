//! Collects what metrics and the access log say of one request, from its head to the end of its answer.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use hyper::body::{Body, Incoming};
use hyper::{Method, Request, StatusCode, Uri, Version};

use crate::base::client::Client;
use crate::base::end::End;
use crate::base::headers::REQUEST_ID;
use crate::base::metrics::LaneMetrics;
use crate::base::request_id::RequestId;
use crate::base::route::Route;
use crate::base::tracing_context::{Context, Span, Tracer};
use crate::fleet::worker::Worker;
use crate::proxy::in_flight::Permit;
use crate::proxy::lane::Lane;
use crate::proxy::payload::Payload;
use crate::proxy::reply::{Reply, Why};

/// The status in metrics and logs of a request whose client did not wait for one.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Belongs to the request, then to the body of its answer, and is written down when it is dropped. The clock is read at
/// the beginning, when the answer's first bytes come, and at the end if that is later.
pub struct RequestRecord {
    lane: Rc<Lane>,
    pub peer: SocketAddr,
    /// Whether the client is told where workers are.
    pub sees_urls: bool,
    /// Whether an administrator asks for what others may see in part.
    pub administers: bool,
    pub client: Arc<Client>,
    id: RequestId,
    pub route: Route,
    is_head: bool,
    /// The version of HTTP that the client speaks: 1.0 has no chunks.
    version: Version,
    /// Only if requests are logged.
    target: Option<(Method, Uri)>,
    began: Instant,
    /// Present while the request is on its way to a worker, or at one.
    in_flight: Option<InFlightGuard>,
    /// The worker whose answer the client gets, or the last one that was tried.
    pub worker: Option<Arc<Worker>>,
    /// How often the request was sent to a worker.
    pub attempts: u32,
    /// Bytes of the request's body, as far as known.
    pub received: u64,
    /// Bytes of the answer's body.
    pub sent: u64,
    status: u16,
    /// Whether the answer is a worker's and not the router's own.
    is_from_worker: bool,
    /// Why the router itself refused it.
    why: Option<Box<str>>,
    ttfb: Option<Duration>,
    took: Option<Duration>,
    /// Its place in a trace, and its method and path, if it is traced.
    trace: Option<Box<(Context, Method, String)>>,
    end: End,
    is_handed_on: bool,
}

impl RequestRecord {
    pub fn begin(
        lane: &Rc<Lane>,
        peer: SocketAddr,
        client: Arc<Client>,
        id: RequestId,
        request: &Request<Incoming>,
    ) -> Self {
        let is_logged = lane.proxy.settings.access_log;
        RequestRecord {
            lane: lane.clone(),
            peer,
            sees_urls: false,
            administers: false,
            client,
            id,
            route: Route::of(request.uri().path()),
            is_head: request.method() == Method::HEAD,
            version: request.version(),
            target: is_logged.then(|| (request.method().clone(), request.uri().clone())),
            began: Instant::now(),
            in_flight: None,
            worker: None,
            attempts: 0,
            received: request.body().size_hint().exact().unwrap_or(0),
            sent: 0,
            status: CLIENT_CLOSED_REQUEST,
            is_from_worker: false,
            why: None,
            ttfb: None,
            took: None,
            trace: None,
            end: End::ClientLeft,
            is_handed_on: false,
        }
    }

    /// Puts the request into its trace, if it has one that is recorded.
    pub fn start_trace(&mut self, tracer: &Tracer, request: &mut Request<Incoming>) {
        if let Some(context) = tracer.enter(request.headers_mut()) {
            let path = request.uri().path().to_owned();
            self.trace = Some(Box::new((*context, request.method().clone(), path)));
        }
    }

    /// Notes that the request goes on to a worker, with a permit if their number is limited.
    pub fn admit(&mut self, permit: Option<Permit>) {
        self.in_flight = Some(InFlightGuard::new(self.lane.clone(), permit));
    }

    /// Notes that no worker has the request any more.
    pub fn release(&mut self) {
        self.in_flight = None;
    }

    /// Notes an attempt at this worker.
    pub fn begin_attempt(&mut self, worker: &Arc<Worker>) {
        self.attempts += 1;
        self.worker = Some(worker.clone());
    }

    /// Notes the head of the answer, and gives it the request's id.
    pub fn begin_answer(&mut self, reply: &mut Reply) {
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
    pub fn count_sent(&mut self, bytes: usize, is_last: bool) {
        self.sent += bytes as u64;
        if self.is_from_worker && self.ttfb.is_none() {
            let now = self.began.elapsed();
            self.ttfb = Some(now);
            if is_last {
                self.took = Some(now);
            }
        }
    }

    pub fn set_end(&mut self, end: End) {
        self.end = end;
        if self.version < Version::HTTP_11 && matches!(end, End::WorkerCut | End::IdleTimeout) {
            self.client.cut();
        }
    }

    /// Whether the answer has no body, even if its headers announce a length.
    pub fn is_bodiless(&self) -> bool {
        self.is_head || matches!(self.status, 100..=199 | 204 | 304)
    }

    /// The record of a connection that goes on after the head of the answer; this one is no longer written down.
    pub fn hand_on(&mut self, status: StatusCode) -> RequestRecord {
        self.is_handed_on = true;
        RequestRecord {
            lane: self.lane.clone(),
            client: self.client.clone(),
            id: self.id.clone(),
            target: self.target.take(),
            in_flight: self.in_flight.take(),
            worker: self.worker.take(),
            trace: self.trace.take(),
            why: None,
            status: status.as_u16(),
            is_handed_on: false,
            ..*self
        }
    }

    fn write_down(&self, metrics: &LaneMetrics) {
        let took = self.took.unwrap_or_else(|| self.began.elapsed());
        // An answer without a body is whole with its head.
        let is_whole = self.is_from_worker && self.end == End::Complete;
        let ttfb = self.ttfb.or(is_whole.then_some(took));
        metrics.finish(self.route, self.status, self.end, self.received, self.sent);
        metrics.observe(self.route, ttfb, took);
        if let (Some(worker), Some(ttfb)) = (&self.worker, ttfb) {
            worker.ttfb.observe(ttfb);
        }
        if let (Some(trace), Some(tracer)) = (&self.trace, &self.lane.proxy.tracer) {
            // A full queue loses the span, and not the request's time.
            let _ = tracer.spans.try_send(self.span(trace, ttfb, took));
        }
        if let Some((method, uri)) = &self.target {
            self.log(method, uri, ttfb, took);
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

    fn span(
        &self,
        (context, method, path): &(Context, Method, String),
        first_byte: Option<Duration>,
        took: Duration,
    ) -> Span {
        Span {
            context: context.clone(),
            began: SystemTime::now() - self.began.elapsed(),
            took,
            first_byte,
            method: method.to_string(),
            path: path.clone(),
            route: self.route.name(),
            request_id: String::from_utf8_lossy(self.id.value.as_bytes()).into_owned(),
            worker: self.worker.as_ref().map(|worker| worker.url.clone()),
            attempts: self.attempts,
            status: self.status,
            end: self.end.name(),
        }
    }

    /// Failures of the router or a worker are logged, even if requests are not.
    fn log_failure(&self, why: &str) {
        let id = String::from_utf8_lossy(self.id.value.as_bytes());
        let status = self.status;
        match &self.worker {
            Some(worker) => {
                tracing::warn!(%id, %status, worker = worker.url, why, "request failed");
            }
            None => tracing::warn!(%id, %status, why, "request failed"),
        }
    }

    fn log(&self, method: &Method, uri: &Uri, ttfb: Option<Duration>, took: Duration) {
        if !self.route.is_logged() {
            return;
        }
        let millis = |time: Duration| time.as_micros() as f64 / 1000.0;
        tracing::info!(
            id = %String::from_utf8_lossy(self.id.value.as_bytes()),
            client = %self.peer,
            method = method.as_str(),
            // Without the query, which may hold secrets.
            path = uri.path(),
            status = self.status,
            worker = self.worker.as_ref().map(|worker| &*worker.url),
            attempts = self.attempts,
            bytes_in = self.received,
            bytes_out = self.sent,
            first_byte_ms = ttfb.map(millis),
            duration_ms = millis(took),
            end = self.end.name(),
            "request"
        );
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if self.is_handed_on {
            return;
        }
        self.in_flight = None;
        self.write_down(self.lane.metrics());
    }
}

/// Counts a request as in flight, and holds its permit, for as long as it lives.
struct InFlightGuard {
    lane: Rc<Lane>,
    _permit: Option<Permit>,
}

impl InFlightGuard {
    fn new(lane: Rc<Lane>, permit: Option<Permit>) -> Self {
        lane.metrics().in_flight.fetch_add(1, Relaxed);
        InFlightGuard {
            lane,
            _permit: permit,
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.lane.metrics().in_flight.fetch_sub(1, Relaxed);
    }
}
