//! What every request passes before anything else looks at it: it gets its id, shows its key, and, if it is
//! for a worker, waits for a place among those in flight.

use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, Entry, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request};

use crate::app::config::Config;
use crate::base::config_error::ConfigError;
use crate::base::headers::{CLIENT_REQUEST_ID, OWNER, REQUEST_ID};
use crate::base::request_id::{RequestId, is_usable};
use crate::front::access;
use crate::front::auth::Keys;
use crate::front::cors::Cors;
use crate::front::cross_site;
use crate::proxy::exchange::Exchange;
use crate::proxy::in_flight::{InFlight, Refused};
use crate::proxy::lane::Lane;
use crate::proxy::reply::{self, Reason, Reply};
use crate::upstream::forwarding;
use crate::upstream::request_body::discard;

/// Open to everyone: what probes and scrapers ask for, which have no key.
const OPEN_PATHS: [&str; 4] = ["/health", "/liveness", "/readiness", "/metrics"];

pub struct Gate {
    pub keys: Keys,
    pub in_flight: InFlight,
    pub cors: Cors,
    /// Where a client may name its request, beside `x-request-id`.
    other_id_headers: Vec<HeaderName>,
}

impl Gate {
    pub fn new(config: &Config) -> Result<Gate, ConfigError> {
        let header = |name: &String| {
            name.parse().map_err(|_| {
                ConfigError(format!(
                    "request_id_headers: {name:?} is not a header's name"
                ))
            })
        };
        Ok(Gate {
            keys: Keys::read(config)?,
            in_flight: InFlight::new(config),
            cors: Cors::new(config)?,
            other_id_headers: config
                .request_id_headers
                .iter()
                .map(header)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// The request's id: the client's, or one that it is given here. Workers and the router's own endpoints
/// find it under `x-request-id`.
pub fn identify(lane: &Lane, request: &mut Request<Incoming>) -> RequestId {
    let headers = request.headers_mut();
    let usable = |name: &HeaderName| headers.get(name).filter(|value| is_usable(value)).cloned();
    let given = lane.shared.gate.other_id_headers.iter().find_map(usable);
    let given = given.or_else(|| match headers.get(REQUEST_ID) {
        Some(id) if is_usable(id) => None,
        _ => usable(&CLIENT_REQUEST_ID),
    });
    let made = || lane.request_ids.borrow_mut().next();
    let (value, is_made_here) = match (given, headers.entry(REQUEST_ID)) {
        (Some(id), entry) => {
            insert(entry, &id);
            (id, false)
        }
        (None, Entry::Occupied(entry)) if is_usable(entry.get()) => (entry.get().clone(), false),
        (None, entry) => {
            let id = made();
            insert(entry, &id);
            (id, true)
        }
    };
    RequestId {
        value,
        is_made_here,
    }
}

/// Puts the value in the place of all that are there.
fn insert(entry: Entry<'_, HeaderValue>, value: &HeaderValue) {
    match entry {
        Entry::Occupied(mut entry) => drop(entry.insert(value.clone())),
        Entry::Vacant(entry) => drop(entry.insert(value.clone())),
    }
}

/// Why a request goes no further.
pub struct Refusal {
    reason: Reason,
    message: String,
}

impl Refusal {
    pub fn new(reason: Reason, message: &str) -> Refusal {
        Refusal {
            reason,
            message: message.to_owned(),
        }
    }

    /// The answer. A body that is still coming is read for a while, so that the client gets to see it.
    pub fn reply(self, request: Request<Incoming>) -> Reply {
        let body = request.into_body();
        if !body.is_end_stream() {
            tokio::task::spawn_local(discard(body));
        }
        self.into_reply()
    }

    /// The answer to a request whose body is seen to elsewhere.
    pub fn into_reply(self) -> Reply {
        let mut reply = reply::error(self.reason, &self.message);
        if self.reason == Reason::InvalidApiKey {
            let challenge = HeaderValue::from_static("Bearer");
            reply.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        reply
    }
}

/// Lets a request with the right key in. It then carries the key for workers, and whose it is.
pub fn authenticate(
    lane: &Lane,
    exchange: &mut Exchange,
    request: &mut Request<Incoming>,
) -> Result<(), Refusal> {
    let shared = &lane.shared;
    let keys = &shared.gate.keys;
    request.headers_mut().remove(OWNER);
    let is_admin = keys.is_admin(request.headers());
    exchange.sees_urls = is_admin || shared.config.expose_worker_urls;
    if access::is_administrative(request.uri().path()) {
        access::allow(shared, exchange.peer, request)?;
    } else if keys.are_needed() {
        match keys.owner(request.headers()).cloned() {
            Some(owner) => drop(request.headers_mut().insert(OWNER, owner)),
            None if is_open(request) => {}
            None => return Err(no_key(request)),
        }
    } else if may_act(request) && cross_site::is_foreign(request.headers(), &shared.gate.cors) {
        return Err(Refusal::new(
            Reason::CrossSiteRequest,
            "a web page of another origin may not ask for this: name its origin in --cors-allowed-origins, or \
             give clients a key (--api-key)",
        ));
    }
    if let Some(key) = &keys.worker {
        request.headers_mut().insert(AUTHORIZATION, key.clone());
    } else if is_admin && keys.owner(request.headers()).is_none() {
        // No worker is to know it.
        request.headers_mut().remove(AUTHORIZATION);
    }
    Ok(())
}

fn no_key(request: &Request<Incoming>) -> Refusal {
    Refusal::new(
        Reason::InvalidApiKey,
        match request.headers().contains_key(AUTHORIZATION) {
            true => "the API key is not one of this router's",
            false => "an API key is needed: send it as \"Authorization: Bearer KEY\"",
        },
    )
}

/// Whether more may come of a request than an answer that a page of another origin cannot read. A browser
/// lets a page of any origin open a WebSocket, and read it.
fn may_act(request: &Request<Incoming>) -> bool {
    !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    ) || forwarding::wants_upgrade(request.headers())
}

fn is_open(request: &Request<Incoming>) -> bool {
    OPEN_PATHS.contains(&request.uri().path())
        && matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Refuses what would get no place now, before its body is read.
pub fn has_room(lane: &Lane) -> Result<(), Refusal> {
    let room = lane.shared.gate.in_flight.has_room();
    room.map_err(|Refused(message)| Refusal::new(Reason::RateLimitExceeded, &message))
}

/// Takes a place among the requests in flight for one that goes to a worker.
pub async fn enter(lane: &Lane, exchange: &mut Exchange) -> Result<(), Refusal> {
    match lane.shared.gate.in_flight.enter().await {
        Ok(has_place) => {
            exchange.enters(has_place);
            Ok(())
        }
        Err(Refused(message)) => Err(Refusal::new(Reason::RateLimitExceeded, &message)),
    }
}
