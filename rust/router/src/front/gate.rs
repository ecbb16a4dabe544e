//! The first checks of every request: it gets its id and must show its key.

use std::cell::RefCell;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, Entry, HeaderName, HeaderValue};
use hyper::{Method, Request};

use crate::base::config_error::ConfigError;
use crate::base::headers::{CLIENT_REQUEST_ID, OWNER, REQUEST_ID};
use crate::base::protocol_key;
use crate::base::request_id::{RequestId, RequestIds, is_usable};
use crate::front::access;
use crate::front::auth::AccessKeys;
use crate::front::cors::Cors;
use crate::front::cross_site;
use crate::proxy::record::RequestRecord;
use crate::proxy::reply::{Reason, Refusal};
use crate::upstream::forwarding;

const METRICS: &str = "/metrics";

/// Paths that need no key: probes and scrapers, which have none, ask for them, and so do browsers for a worker's page,
/// which asks its reader for the key.
const OPEN_PATHS: [&str; 6] = ["/", "/health", "/liveness", METRICS, "/ping", "/readiness"];
/// Where a worker's page has its styles and scripts.
const PAGE_PARTS: &str = "/page/";

pub struct Gate {
    pub keys: AccessKeys,
    pub cors: Cors,
    /// Host names under which the router may be administered, beside its addresses.
    pub own_names: Vec<String>,
    /// Whether every client is told the workers' URLs.
    pub shows_urls: bool,
    /// Headers that may hold a request's id, beside `x-request-id`.
    pub id_headers: Vec<HeaderName>,
}

/// Parses the names of headers that may hold a request's id.
pub fn id_headers(names: &[String]) -> Result<Vec<HeaderName>, ConfigError> {
    let header = |name: &String| {
        let wrong = || format!("request_id_headers: {name:?} is not a header's name");
        name.parse().map_err(|_| ConfigError(wrong()))
    };
    names.iter().map(header).collect()
}

/// The request's id: the client's, or a new one. It is put into the request as `x-request-id`.
pub fn identify(
    gate: &Gate,
    ids: &RefCell<RequestIds>,
    request: &mut Request<Incoming>,
) -> RequestId {
    let headers = request.headers_mut();
    let usable = |name: &HeaderName| headers.get(name).filter(|value| is_usable(value)).cloned();
    let given = gate.id_headers.iter().find_map(usable);
    let given = given.or_else(|| match headers.get(REQUEST_ID) {
        Some(id) if is_usable(id) => None,
        _ => usable(&CLIENT_REQUEST_ID),
    });
    let (value, is_made_here) = match (given, headers.entry(REQUEST_ID)) {
        (Some(id), entry) => {
            insert(entry, &id);
            (id, false)
        }
        (None, Entry::Occupied(entry)) if is_usable(entry.get()) => (entry.get().clone(), false),
        (None, entry) => {
            let id = ids.borrow_mut().next();
            insert(entry, &id);
            (id, true)
        }
    };
    RequestId {
        value,
        is_made_here,
    }
}

/// Sets the value in place of all present ones.
fn insert(entry: Entry<'_, HeaderValue>, value: &HeaderValue) {
    match entry {
        Entry::Occupied(mut entry) => drop(entry.insert(value.clone())),
        Entry::Vacant(entry) => drop(entry.insert(value.clone())),
    }
}

/// Admits a request with the right key and puts the workers' key and the owner's word into it. Returns the key's tenant.
pub fn authenticate(
    gate: &Gate,
    record: &mut RequestRecord,
    request: &mut Request<Incoming>,
) -> Result<Option<Arc<str>>, Refusal> {
    let keys = &gate.keys;
    let mut tenant = None;
    request.headers_mut().remove(OWNER);
    let is_admin = keys.is_admin(request.headers());
    record.sees_urls = is_admin || gate.shows_urls;
    // A worker's key is not lent to those who need a key here and show none.
    let mut lends_key = true;
    // What workers count is for administrators, and asking all of them costs more than the router's own counts.
    record.administers = request.uri().path() == METRICS
        && access::allow(keys, &gate.own_names, record.peer, request).is_ok();
    if access::is_administrative(request.uri().path()) {
        access::allow(keys, &gate.own_names, record.peer, request)?;
    } else if keys.are_needed() {
        match keys.client(request.headers()) {
            Some(client) => {
                tenant = Some(client.tenant.clone());
                request.headers_mut().insert(OWNER, client.owner.clone());
            }
            None if is_open(request) => lends_key = false,
            None => return Err(no_key(request)),
        }
    } else if may_act(request) && cross_site::is_foreign(request.headers(), &gate.cors) {
        return Err(Refusal::new(
            Reason::CrossSiteRequest,
            "a web page of another origin may not ask for this: name its origin in --cors-allowed-origins, or \
             give clients a key (--api-key)",
        ));
    }
    if !lends_key {
        request.headers_mut().remove(AUTHORIZATION);
        protocol_key::hide(request.headers_mut());
    } else if let Some(key) = &keys.worker {
        request.headers_mut().insert(AUTHORIZATION, key.clone());
        protocol_key::hide(request.headers_mut());
    } else if is_admin && keys.owner(request.headers()).is_none() {
        // No worker may see the admin key.
        request.headers_mut().remove(AUTHORIZATION);
    }
    Ok(tenant)
}

fn no_key(request: &Request<Incoming>) -> Refusal {
    Refusal::new(
        Reason::InvalidApiKey,
        match request.headers().contains_key(AUTHORIZATION)
            || protocol_key::shown(request.headers()).is_some()
        {
            true => "the API key is not one of this router's",
            false => "an API key is needed: send it as \"Authorization: Bearer KEY\"",
        },
    )
}

/// Whether a request of a foreign page may do harm: it changes something, or opens a WebSocket, which a browser lets
/// pages of any origin do and read.
fn may_act(request: &Request<Incoming>) -> bool {
    !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    ) || forwarding::wants_upgrade(request.headers())
}

/// A worker's page has its parts side by side. Any other name below it might lead out of it again, as the worker or a
/// proxy before it reads dots, encoded ones or several slashes.
fn is_page_part(path: &str) -> bool {
    path.strip_prefix(PAGE_PARTS).is_some_and(|name| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
        name.bytes().all(is_plain) && name.split('/').all(|part| !part.starts_with('.'))
    })
}

fn is_open(request: &Request<Incoming>) -> bool {
    let path = request.uri().path();
    (OPEN_PATHS.contains(&path) || is_page_part(path))
        && matches!(*request.method(), Method::GET | Method::HEAD)
}
