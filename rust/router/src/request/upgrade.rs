//! Requests that change protocols (WebSocket): once the worker agrees, bytes go both ways untouched.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::fleet::models;
use crate::fleet::waiting::{Asked, GaveUp};
use crate::fleet::worker::LoadGuard;
use crate::front::reply::{self, Reply};
use crate::request::body::{Payload, ResponseBody};
use crate::request::exchange::{End, Exchange};
use crate::request::forwarding;
use crate::request::proxy::{WORKER_HEADER, answer, exhausted, is_exhaustion, name_header};
use crate::request::retry::Tries;
use crate::request::upload::RequestBody;
use crate::request::upstream::{connect, connect_limit};
use crate::runtime::lane::{Lane, Open};

const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("upgrade");

pub async fn forward(
    lane: &Rc<Lane>,
    exchange: &mut Exchange,
    mut request: Request<Incoming>,
) -> Reply {
    let client = hyper::upgrade::on(&mut request);
    let (mut parts, _) = request.into_parts();
    parts.headers = with_upgrade(parts.headers);

    let nothing = Bytes::new();
    if let Some(model) = models::unknown(lane, &parts, b"").await {
        return reply::unknown_model(&model);
    }
    let mut tries = Tries::new(lane, exchange.sees_urls);
    let (worker, load, mut response) = loop {
        let Some(worker) = tries.choose(&parts, b"") else {
            return tries.give_up();
        };
        exchange.tries(&worker);
        let load = LoadGuard::new(worker.clone());
        let mut sender = match connect(&worker, &lane.shared.trust, connect_limit(&worker)).await {
            Ok((sender, connection)) => {
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
            route: exchange.route,
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
        return answer(response, &worker, exchange.sees_urls, |incoming| {
            ResponseBody::new(incoming, None, lane.clone(), load)
        });
    }
    let server = hyper::upgrade::on(&mut response);
    tokio::task::spawn_local(relay(
        client,
        server,
        lane.shared.config.stall_timeout,
        exchange.hand_on(StatusCode::SWITCHING_PROTOCOLS),
        load,
        Open::new(lane.clone()),
    ));
    let (mut parts, _) = response.into_parts();
    parts.headers = with_upgrade(parts.headers);
    parts
        .headers
        .insert(WORKER_HEADER, name_header(&worker, exchange.sees_urls));
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
/// still has to say, so that one that does not notice holds nothing for ever.
async fn relay(
    client: OnUpgrade,
    server: OnUpgrade,
    patience: Duration,
    mut exchange: Exchange,
    _load: LoadGuard,
    _open: Open,
) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else {
        return;
    };
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_server, to_server) = tokio::io::split(TokioIo::new(server));
    let mut up = pin!(pass(from_client, to_server));
    let mut down = pin!(pass(from_server, to_client));
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
    let passed: io::Result<(u64, u64)> = both.await;
    if let Ok((up, down)) = passed {
        exchange.received += up;
        exchange.sent += down;
        exchange.ends(End::Complete);
    }
}

/// Passes on what is read, and the end of it; returns how many bytes that were.
async fn pass(
    mut from: ReadHalf<TokioIo<Upgraded>>,
    mut to: WriteHalf<TokioIo<Upgraded>>,
) -> io::Result<u64> {
    let bytes = tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await?;
    Ok(bytes)
}
