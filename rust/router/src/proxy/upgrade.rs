//! Requests that change protocols (WebSocket): once the worker agrees, bytes go both ways untouched.

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
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::base::end::End;
use crate::base::headers;
use crate::fleet::waiting::{Asked, GaveUp};
use crate::fleet::worker::LoadGuard;
use crate::proxy::attempts::Tries;
use crate::proxy::body::{Payload, ResponseBody};
use crate::proxy::http::{answer, exhausted, name_header};
use crate::proxy::lane::{Lane, Open};
use crate::proxy::record::RequestRecord;
use crate::proxy::reply::{self, Reply};
use crate::upstream::connection::{Begun, connect, is_exhaustion};
use crate::upstream::forwarding;
use crate::upstream::request_body::RequestBody;

const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("upgrade");

pub async fn forward(
    lane: &Rc<Lane>,
    record: &mut RequestRecord,
    mut request: Request<Incoming>,
) -> Reply {
    match lane.proxy.in_flight.enter().await {
        Ok(permit) => record.enters(permit),
        Err(refusal) => return refusal.reply(request),
    }
    let client = hyper::upgrade::on(&mut request);
    let (mut parts, _) = request.into_parts();
    parts.headers = with_upgrade(parts.headers);
    forwarding::note_hop(parts.version, &mut parts.headers);

    let nothing = Bytes::new();
    if let Some(model) = lane.proxy.models.unknown(&lane.pool, &parts, b"").await {
        return reply::unknown_model(&model);
    }
    let mut tries = Tries::new(lane, record.sees_urls);
    let (worker, load, mut response) = loop {
        let Some(worker) = tries.choose(&parts, b"") else {
            return tries.give_up();
        };
        record.tries(&worker);
        let load = LoadGuard::new(worker.clone());
        let mut sender =
            match connect(&worker.endpoint, &lane.proxy.trust, worker.connect_limit()).await {
                Ok((sender, connection, _)) => {
                    // It ends with the exchange, or hands its stream over.
                    tokio::task::spawn_local(connection.with_upgrades());
                    sender
                }
                Err(error) if is_exhaustion(&error) => return exhausted(&error),
                Err(error) => {
                    tries.unsent(&worker, &error);
                    continue;
                }
            };
        let mut request = Request::from_parts(parts.clone(), RequestBody::empty());
        worker.authorize(request.headers_mut());
        let asked = Asked {
            route: record.route,
            body: Some(&nothing),
            deadline: tries.deadline,
        };
        let answer = sender.send_request(request);
        let may_move = || tries.may_move(&worker);
        match lane.waiting.head(&worker, &asked, may_move, answer).await {
            Ok(Ok(response)) if tries.again_after(&worker, &response, true) => {}
            Ok(Ok(response)) => break (worker, load, response),
            Err(GaveUp::Expired) => return tries.expired(&worker),
            Err(GaveUp::Hung) => tries.moved(&worker),
            Ok(Err(error)) => {
                if !tries.broken(&worker, &error.to_string()) {
                    return tries.give_up();
                }
            }
        }
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return answer(
            response.map(Begun::from),
            &worker,
            record.sees_urls,
            |body| ResponseBody::new(body, None, lane.clone(), load),
        );
    }
    let server = hyper::upgrade::on(&mut response);
    tokio::task::spawn_local(relay(
        client,
        server,
        lane.proxy.settings.stall_timeout,
        lane.proxy.settings.stream_idle_timeout,
        record.hand_on(StatusCode::SWITCHING_PROTOCOLS),
        load,
        Open::new(lane.clone()),
    ));
    let (mut parts, _) = response.into_parts();
    parts.headers = with_upgrade(parts.headers);
    parts
        .headers
        .insert(headers::WORKER, name_header(&worker, record.sees_urls));
    Response::from_parts(parts, Payload::Local(None))
}

/// The headers that pass a proxy, and the wish to upgrade, or the consent to, which this one hands on.
fn with_upgrade(headers: HeaderMap) -> HeaderMap {
    let upgrade = headers.get(UPGRADE).cloned();
    let mut kept = forwarding::request_headers(headers);
    kept.insert(CONNECTION, UPGRADE_TOKEN);
    kept.extend(upgrade.map(|value| (UPGRADE, value)));
    kept
}

/// Copies until both sides have ended. Either may end first; the other then has `patience` for what it
/// still has to say, so that one that does not notice holds nothing for ever. Nor do two that say nothing.
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
    let mut up = pin!(pass(from_client, to_server, &last));
    let mut down = pin!(pass(from_server, to_client, &last));
    let both = async {
        tokio::select! {
            sent_up = &mut up => {
                let sent_up = sent_up?;
                Ok((sent_up, timeout(patience, down).await??))
            }
            sent_down = &mut down => {
                let sent_down = sent_down?;
                Ok((timeout(patience, up).await??, sent_down))
            }
        }
    };
    // An error is one side's reset: dropping both ends passes it on.
    let passed: io::Result<(u64, u64)> = tokio::select! {
        passed = both => passed,
        () = silence(&last, idle_limit) => return record.ends(End::IdleTimeout),
    };
    if let Ok((up, down)) = passed {
        record.received += up;
        record.sent += down;
        record.ends(End::Complete);
    }
}

/// Passes on what is read, and the end of it; returns how many bytes that were.
async fn pass(
    from: ReadHalf<TokioIo<Upgraded>>,
    mut to: WriteHalf<TokioIo<Upgraded>>,
    last: &Rc<Cell<Instant>>,
) -> io::Result<u64> {
    let last = last.clone();
    let bytes = tokio::io::copy(&mut Noted { from, last }, &mut to).await?;
    to.shutdown().await?;
    Ok(bytes)
}

/// Ends once nothing was read from either side for as long as that is allowed; never where it is for ever.
async fn silence(last: &Cell<Instant>, limit: Duration) {
    if limit.is_zero() {
        return pending().await;
    }
    while last.get().elapsed() < limit {
        sleep_until(last.get() + limit).await;
    }
}

/// Notes when something was read.
struct Noted {
    from: ReadHalf<TokioIo<Upgraded>>,
    last: Rc<Cell<Instant>>,
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.from).poll_read(cx, buf);
        if read.is_ready() {
            self.last.set(Instant::now());
        }
        read
    }
}
