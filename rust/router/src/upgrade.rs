//! Requests that change protocols (WebSocket): once the worker agrees, bytes go both ways untouched.

use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;

use crate::body::{RequestBody, ResponseBody};
use crate::exchange::{End, Exchange};
use crate::forwarding;
use crate::lane::{Lane, Open};
use crate::models;
use crate::proxy::{WORKER_HEADER, answer, exhausted, is_exhaustion};
use crate::reply::{self, Reply};
use crate::retry::Tries;
use crate::upstream::{connect, connect_limit};
use crate::waiting::{Asked, GaveUp};
use crate::worker::LoadGuard;

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
    if let Some(refusal) = models::refuse_unknown(lane, &parts, b"").await {
        return refusal;
    }
    let mut tries = Tries::new(lane);
    let (worker, load, mut response) = loop {
        let Some(worker) = tries.choose(&parts, b"") else {
            return tries.give_up();
        };
        exchange.tries(&worker);
        let load = LoadGuard::new(worker.clone());
        let mut sender = match connect(&worker, connect_limit(&worker)).await {
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
        let request = Request::from_parts(parts.clone(), RequestBody::empty());
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
        return answer(response, &worker, |incoming| {
            ResponseBody::new(incoming, None, lane.clone(), load)
        });
    }
    let server = hyper::upgrade::on(&mut response);
    tokio::task::spawn_local(relay(
        client,
        server,
        exchange.hand_on(StatusCode::SWITCHING_PROTOCOLS),
        load,
        Open::new(lane.clone()),
    ));
    let (parts, _) = response.into_parts();
    let mut reply = reply::text(StatusCode::SWITCHING_PROTOCOLS, "", String::new());
    *reply.headers_mut() = with_upgrade(parts.headers);
    reply
        .headers_mut()
        .insert(WORKER_HEADER, worker.url_header.clone());
    reply
}

/// The headers that pass a proxy, and the wish to upgrade, or the consent to, which this one hands on.
fn with_upgrade(headers: HeaderMap) -> HeaderMap {
    let upgrade = headers.get(UPGRADE).cloned();
    let mut kept = forwarding::request_headers(headers);
    kept.insert(CONNECTION, UPGRADE_TOKEN);
    kept.extend(upgrade.map(|value| (UPGRADE, value)));
    kept
}

/// Copies until both sides have ended; either may end first.
async fn relay(
    client: OnUpgrade,
    server: OnUpgrade,
    mut exchange: Exchange,
    _load: LoadGuard,
    _open: Open,
) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else {
        return;
    };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    // An error is one side's reset: dropping both ends passes it on.
    if let Ok((up, down)) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
        exchange.received += up;
        exchange.sent += down;
        exchange.ends(End::Complete);
    }
}
