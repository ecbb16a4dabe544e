//! Forwards requests that change protocols (WebSocket): once the worker agrees, bytes go both ways untouched.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::base::end::End;
use crate::base::headers;
use crate::base::route::Route;
use crate::fleet::pending_heads::Asked;
use crate::fleet::worker::{LoadGuard, Worker};
use crate::proxy::attempt_loop::{self, Attempt, Outcome, name_header};
use crate::proxy::attempts::Attempts;
use crate::proxy::lane::{Lane, Open};
use crate::proxy::payload::Payload;
use crate::proxy::record::RequestRecord;
use crate::proxy::reply::{Refusal, Reply};
use crate::proxy::usage;
use crate::proxy::wish::Wish;
use crate::upstream::connection::{Begun, connect};
use crate::upstream::forwarding;
use crate::upstream::request_body::RequestBody;

const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("upgrade");

pub async fn forward(
    lane: &Rc<Lane>,
    record: &mut RequestRecord,
    mut request: Request<Incoming>,
    wish: Option<Box<Wish>>,
) -> Reply {
    match lane
        .proxy
        .in_flight
        .enter(wish, || usage::tokens(b""))
        .await
    {
        Ok(permit) => record.admit(permit),
        Err(full) => return Refusal::from(full).reply(request),
    }
    let client = hyper::upgrade::on(&mut request);
    let (mut parts, _) = request.into_parts();
    parts.headers = with_upgrade(parts.headers);
    forwarding::note_hop(parts.version, &mut parts.headers);

    let mut attempt = UpgradeAttempt {
        lane,
        parts: &parts,
        route: record.route,
    };
    let mut answer = match attempt_loop::run(lane, record, &parts, b"", &mut attempt).await {
        Ok(answer) => answer,
        Err(reply) => return reply,
    };
    if answer.response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return answer.into_reply(lane, record.sees_urls);
    }
    let server = hyper::upgrade::on(&mut answer.response);
    tokio::task::spawn_local(relay(
        client,
        server,
        lane.proxy.settings.stall_timeout,
        lane.proxy.settings.stream_idle_timeout,
        record.hand_on(StatusCode::SWITCHING_PROTOCOLS),
        answer.load,
        Open::new(lane.clone()),
    ));
    let (mut parts, _) = answer.response.into_parts();
    parts.headers = with_upgrade(parts.headers);
    parts.headers.insert(
        headers::WORKER,
        name_header(&answer.worker, record.sees_urls),
    );
    Response::from_parts(parts, Payload::Local(None))
}

struct UpgradeAttempt<'a> {
    lane: &'a Lane,
    parts: &'a Parts,
    route: Route,
}

impl Attempt for UpgradeAttempt<'_> {
    /// Asks on a connection of its own, which becomes the upgraded one.
    async fn send(&mut self, worker: &Worker, attempts: &mut Attempts<'_>) -> Outcome {
        let limit = worker.connect_limit();
        let opened = connect(&worker.endpoint, &self.lane.proxy.trust, limit).await;
        let (mut sender, connection, _) = match opened {
            Ok(opened) => opened,
            Err(error) => return Outcome::NoConnection(error),
        };
        // The task ends with the answer, or hands the stream over.
        tokio::task::spawn_local(connection.with_upgrades());
        let mut request = Request::from_parts(self.parts.clone(), RequestBody::empty());
        worker.authorize(request.headers_mut());
        let asked = Asked {
            route: self.route,
            body: Some(&Bytes::new()),
            deadline: attempts.deadline,
        };
        let answer = sender.send_request(request);
        let may_move = || attempts.may_move(worker);
        match self
            .lane
            .pending_heads
            .head(worker, &asked, may_move, answer)
            .await
        {
            Ok(Ok(response)) => Outcome::Answered(response.map(Begun::from), None),
            Ok(Err(error)) => Outcome::Reset(error.to_string()),
            Err(gave_up) => Outcome::GaveUp(gave_up),
        }
    }
}

/// The headers that pass a proxy, with the request to upgrade or the consent to it.
fn with_upgrade(headers: HeaderMap) -> HeaderMap {
    let upgrade = headers.get(UPGRADE).cloned();
    let mut kept = forwarding::request_headers(headers);
    kept.insert(CONNECTION, UPGRADE_TOKEN);
    kept.extend(upgrade.map(|value| (UPGRADE, value)));
    kept
}

/// Copies until both sides have ended. If one ends first, the other has `patience` for the rest of its data, so that a
/// side that does not notice the end holds nothing for ever. If both are silent for `idle_limit`, the relay ends.
async fn relay(
    client: OnUpgrade,
    server: OnUpgrade,
    patience: Duration,
    idle_limit: Duration,
    mut record: RequestRecord,
    _load: LoadGuard,
    _open: Open,
) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else {
        return;
    };
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_server, to_server) = tokio::io::split(TokioIo::new(server));
    let last = Rc::new(Cell::new(Instant::now()));
    let (sent_up, sent_down) = (Rc::new(Flow::default()), Rc::new(Flow::default()));
    let mut up = pin!(pass(from_client, to_server, &last, &sent_up));
    let mut down = pin!(pass(from_server, to_client, &last, &sent_down));
    // Ends with whether all was passed on, or which side broke it off.
    let both = async {
        let is_up_first = tokio::select! {
            passed = &mut up => {
                passed.map_err(|broke| broke.of(Side::Client))?;
                true
            }
            passed = &mut down => {
                passed.map_err(|broke| broke.of(Side::Worker))?;
                false
            }
        };
        let late = |_| Side::Client;
        match is_up_first {
            true => timeout(patience, down)
                .await
                .map_err(late)?
                .map_err(|broke| broke.of(Side::Worker)),
            false => timeout(patience, up)
                .await
                .map_err(late)?
                .map_err(|broke| broke.of(Side::Client)),
        }
    };
    let ended = tokio::select! {
        passed = both => match passed {
            Ok(()) => End::Complete,
            Err(Side::Client) => End::ClientLeft,
            Err(Side::Worker) => End::WorkerCut,
        },
        () = silence(&last, idle_limit) => End::IdleTimeout,
    };
    record.received += sent_up.bytes.get();
    record.sent += sent_down.bytes.get();
    if ended == End::WorkerCut {
        // An orderly end would make what the client has look whole.
        record.client.cut();
    }
    record.set_end(ended);
}

/// The two ends of an upgraded connection.
#[derive(Clone, Copy)]
enum Side {
    Client,
    Worker,
}

/// Which end of one direction broke.
enum Broke {
    From,
    To,
}

impl Broke {
    /// The side that it is, if bytes come from `from`.
    fn of(self, from: Side) -> Side {
        match (self, from) {
            (Broke::From, from) => from,
            (Broke::To, Side::Client) => Side::Worker,
            (Broke::To, Side::Worker) => Side::Client,
        }
    }
}

/// What was read in one direction.
#[derive(Default)]
struct Flow {
    bytes: Cell<u64>,
    is_broken: Cell<bool>,
}

/// Passes on all bytes and their end.
async fn pass(
    from: ReadHalf<TokioIo<Upgraded>>,
    mut to: WriteHalf<TokioIo<Upgraded>>,
    last: &Rc<Cell<Instant>>,
    flow: &Rc<Flow>,
) -> Result<(), Broke> {
    let mut noted = Noted {
        from,
        last: last.clone(),
        flow: flow.clone(),
    };
    let copied = async {
        tokio::io::copy(&mut noted, &mut to).await?;
        to.shutdown().await
    };
    copied.await.map_err(|_| match flow.is_broken.get() {
        true => Broke::From,
        false => Broke::To,
    })
}

/// Ends once neither side has sent anything for `limit`; never if that is zero.
async fn silence(last: &Cell<Instant>, limit: Duration) {
    if limit.is_zero() {
        return pending().await;
    }
    while last.get().elapsed() < limit {
        sleep_until(last.get() + limit).await;
    }
}

/// Notes when something was last read, and how much.
struct Noted {
    from: ReadHalf<TokioIo<Upgraded>>,
    last: Rc<Cell<Instant>>,
    flow: Rc<Flow>,
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.from).poll_read(cx, buf);
        if let Poll::Ready(read) = &read {
            self.last.set(Instant::now());
            let flow = &self.flow;
            flow.bytes
                .set(flow.bytes.get() + (buf.filled().len() - before) as u64);
            flow.is_broken.set(read.is_err());
        }
        read
    }
}
