//! Accepts a lane's client connections and answers the requests on them.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::iter;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::admin::{self, Admin};
use crate::base::client::{Client, Phase};
use crate::base::clock::{self, LaneClock, TICK};
use crate::base::fault_point::fault_point;
use crate::base::request_id::RequestIds;
use crate::base::stopping::Stopping;
use crate::base::stream::Stream;
use crate::front::client_io::ClientIo;
use crate::front::clients::{ClientLimits, Clients};
use crate::front::cors;
use crate::front::gate::{self, Gate};
use crate::front::listen::BACKLOG;
use crate::front::tls::Tls;
use crate::front::unsent::Unsent;
use crate::proxy;
use crate::proxy::body::ReplyBody;
use crate::proxy::lane::{Lane, Open};
use crate::proxy::record::RequestRecord;
use crate::proxy::reply;
use crate::proxy::reply::{Reason, Refusal};
use crate::upstream::forwarding;

/// Bytes of headers in one request; more is refused with 431.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// The methods in `Allow`; a worker may know others.
const METHODS: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// A shutdown closes idle connections after this long: a request that is already on its way is still answered, and the
/// answer says that it is the last.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// The clients' side of the router, as all lanes share it.
pub struct Front {
    pub gate: Gate,
    pub admin: Admin,
    /// TLS for clients, if they must use it.
    pub tls: Option<Arc<Tls>>,
    pub limits: ClientLimits,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How long requests in flight may take once a drain was asked for.
    pub drain_timeout: Duration,
    /// Bytes of answers that clients have not taken.
    pub unsent: Arc<AtomicUsize>,
    pub stopping: watch::Receiver<Stopping>,
}

/// One lane's clients.
struct Acceptor {
    front: Arc<Front>,
    lane: Rc<Lane>,
    clients: Rc<Clients>,
    request_ids: RefCell<RequestIds>,
}

/// Runs one lane from its start to its end.
pub async fn serve(front: Arc<Front>, lane: Rc<Lane>, listeners: Vec<StdListener>) {
    let acceptor = Rc::new(Acceptor {
        front: front.clone(),
        lane: lane.clone(),
        clients: Rc::default(),
        request_ids: RefCell::default(),
    });
    let listeners: Vec<TcpListener> = listeners
        .into_iter()
        .map(|each| TcpListener::from_std(each).expect("it is a non-blocking TCP socket"))
        .collect();
    let mut stopping = front.stopping.clone();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = LaneClock::default();
    let mut look_over = || {
        look = look.next(clock::advance());
        lane.look_over(look);
        let cut = acceptor.clients.look_over(look, &front.limits);
        lane.metrics().slow_clients.fetch_add(cut, Relaxed);
    };
    loop {
        tokio::select! {
            accepted = accept(&listeners) => match accepted {
                Ok((stream, peer)) => admit(&acceptor, stream, peer),
                // Out of descriptors, most likely: some must be closed first.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
            _ = tick.tick() => look_over(),
            _ = stopping.changed() => break,
        }
    }
    for (stream, peer) in listeners.into_iter().flat_map(backlog) {
        admit(&acceptor, stream, peer);
    }
    acceptor.clients.leave();
    let began = Instant::now();
    let deadline = began + front.drain_timeout;
    while *stopping.borrow() < Stopping::Now && lane.open.get() > 0 && Instant::now() < deadline {
        if began.elapsed() >= LAST_REQUESTS {
            acceptor.clients.dismiss();
        }
        tokio::select! {
            _ = tick.tick() => look_over(),
            _ = stopping.changed() => {}
            () = sleep(Duration::from_millis(20)) => {}
        }
    }
}

async fn accept(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    poll_fn(|cx| {
        let accepted = |each: &TcpListener| match each.poll_accept(cx) {
            Poll::Ready(accepted) => Some(accepted),
            Poll::Pending => None,
        };
        listeners
            .iter()
            .find_map(accepted)
            .map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The connections that the kernel has accepted and the router has not; closing the listener would reset them. The
/// listener is closed at the end.
fn backlog(listener: TcpListener) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    // This asks the kernel: the runtime's knowledge is as old as its last look.
    let listener = listener.into_std().ok();
    let accept = move || listener.as_ref()?.accept().ok();
    iter::from_fn(accept)
        .take(BACKLOG)
        .filter_map(|(stream, peer)| {
            stream.set_nonblocking(true).ok()?;
            Some((TcpStream::from_std(stream).ok()?, peer))
        })
}

fn admit(acceptor: &Rc<Acceptor>, stream: TcpStream, peer: SocketAddr) {
    // The connection counts as open before its task first runs, since the lane's end waits for open ones.
    let open = Open::new(acceptor.lane.clone());
    tokio::task::spawn_local(connection(acceptor.clone(), open, stream, peer));
}

/// One client's connection.
async fn connection(acceptor: Rc<Acceptor>, _open: Open, stream: TcpStream, peer: SocketAddr) {
    if let Some(fault) = fault_point("router.accept")
        && fault.await.is_err()
    {
        return;
    }
    if stream.set_nodelay(true).is_err() {
        return; // Already closed by the client.
    }
    acceptor.lane.metrics().accepted.fetch_add(1, Relaxed);
    let Some(stream) = secured(&acceptor, stream).await else {
        return;
    };
    let entry = acceptor.clients.enter(stream.socket().as_raw_fd(), peer);
    let client = &entry.client;
    let service = service_fn(|request| respond(&acceptor, client, peer, request));
    let unsent = Unsent::new(acceptor.front.unsent.clone());
    let io = TokioIo::new(ClientIo::new(stream, client.clone(), unsent));
    let mut http = http1::Builder::new();
    http.preserve_header_case(true);
    let mut http = pin!(http.serve_connection(io, service).with_upgrades());
    let mut is_leaving = false;
    poll_fn(|cx| {
        client.set_waker(cx.waker());
        if client.has_left() {
            return Poll::Ready(());
        }
        // If a client is late with a body, the reader of the body tells it so.
        if client.is_late() && !matches!(client.phase(), Phase::Body | Phase::Answer) {
            return Poll::Ready(());
        }
        if acceptor.clients.are_dismissed() && !is_leaving {
            is_leaving = true;
            // What has arrived by now is read first, and so still answered.
            if http.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            http.as_mut().graceful_shutdown();
        }
        // Errors are the client's: it left, or sent something that is not HTTP and was told so.
        http.as_mut().poll(cx).map(drop)
    })
    .await;
}

/// The connection, with TLS if clients must use it; None if the handshake failed or took too long.
async fn secured(acceptor: &Acceptor, stream: TcpStream) -> Option<Stream> {
    let Acceptor { front, lane, .. } = acceptor;
    let Some(tls) = &front.tls else {
        return Some(Stream::Plain(stream));
    };
    let mut stopping = front.stopping.clone();
    let error = tokio::select! {
        done = timeout(front.handshake_timeout, tls.accept(stream)) => match done {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        },
        () = last_call(&mut stopping) => return None,
    };
    lane.metrics().failed_handshakes.fetch_add(1, Relaxed);
    tracing::debug!(why = %error, "TLS handshake failed");
    None
}

/// Ends when a shutdown no longer waits for clients that have not sent a request.
async fn last_call(stopping: &mut watch::Receiver<Stopping>) {
    let _ = stopping.wait_for(|stopping| *stopping > Stopping::No).await;
    sleep(LAST_REQUESTS).await;
}

async fn respond(
    acceptor: &Acceptor,
    client: &Arc<Client>,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    client.begin_request();
    forwarding::strike_named(request.headers_mut());
    let Acceptor { front, lane, .. } = acceptor;
    let id = gate::identify(&front.gate, &acceptor.request_ids, &mut request);
    let mut record = Box::new(RequestRecord::begin(
        lane,
        peer,
        client.clone(),
        id,
        &request,
    ));
    let origin = front.gate.cors.origin(request.headers());
    let asked = origin.as_ref().and_then(|_| cors::preflight(&request));
    let mut reply = match asked {
        Some(reply) => reply,
        None => route(front, lane, &mut record, request).await,
    };
    record.begin_answer(&mut reply);
    if let Some(origin) = origin {
        cors::allow(origin, &mut reply);
    }
    if acceptor.clients.are_leaving() && reply.status() != StatusCode::SWITCHING_PROTOCOLS {
        let close = HeaderValue::from_static("close");
        reply.headers_mut().insert(CONNECTION, close);
    }
    Ok(reply.map(|payload| ReplyBody::new(payload, client.clone(), record)))
}

fn not_forwarded(message: &str) -> reply::Reply {
    let mut reply = reply::error(Reason::MethodNotAllowed, message);
    reply.headers_mut().insert(ALLOW, METHODS);
    reply
}

async fn route(
    front: &Front,
    lane: &Rc<Lane>,
    record: &mut RequestRecord,
    mut request: Request<Incoming>,
) -> reply::Reply {
    let size = forwarding::size(request.headers());
    if size > MAX_HEADER_BYTES {
        let message =
            format!("the request's headers take {size} bytes; the limit is {MAX_HEADER_BYTES}");
        return reply::error(Reason::HeadersTooLarge, &message);
    }
    match *request.method() {
        Method::CONNECT => {
            return not_forwarded("CONNECT: this is a router, not a forward proxy");
        }
        // The answer would show headers that were added on the way, keys among them.
        Method::TRACE => return not_forwarded("TRACE: this router shows no request"),
        _ => {}
    }
    if !forwarding::has_one_host(request.version(), request.headers()) {
        let message = "a request of HTTP/1.1 names its host once, in one Host header";
        return reply::last_error(Reason::InvalidHttp, message);
    }
    if !forwarding::has_known_coding(request.headers()) {
        let message = "\"Transfer-Encoding: chunked\", once, is all that this router takes";
        return reply::last_error(Reason::UnsupportedTransferEncoding, message);
    }
    if request.uri().authority().is_some() {
        forwarding::to_origin_form(&mut request);
    }
    let tenant = match gate::authenticate(&front.gate, record, &mut request) {
        Ok(tenant) => tenant,
        Err(refusal) => return refusal.reply(request),
    };
    let mut request = match admin::answer(lane, &front.admin, record, request).await {
        Ok(reply) => return reply,
        Err(request) => request,
    };
    if request.method() == Method::OPTIONS && !forwarding::may_go_on(request.headers_mut()) {
        let mut reply = reply::text(StatusCode::NO_CONTENT, "text/plain", String::new());
        reply.headers_mut().clear();
        reply.headers_mut().insert(ALLOW, METHODS);
        return reply;
    }
    if let Some(tracer) = &lane.proxy.tracer {
        record.start_trace(tracer, &mut request);
    }
    let limits = &lane.proxy.in_flight;
    let wish = match limits.wish(tenant, request.headers()) {
        Ok(wish) => wish,
        Err(why) => return Refusal::new(Reason::InvalidParameter, why).reply(request),
    };
    if let Some(Err(full)) = wish.as_deref().map(|wish| limits.has_room(wish)) {
        return Refusal::from(full).reply(request);
    }
    // If the request has a body, its offer to upgrade is ignored, as it may be.
    if forwarding::wants_upgrade(request.headers()) && request.body().is_end_stream() {
        return proxy::upgrade::forward(lane, record, request, wish).await;
    }
    proxy::http::forward(lane, record, request, wish).await
}
