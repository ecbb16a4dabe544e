//! Chooses the worker for a request, or tells the client why there is none.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hyper::http::request::Parts;
use sglang_omni_policy::key::scan::{Scan, read_token_ids, scan};
use sglang_omni_policy::{Claim, Policy, RequestKey};

use crate::base::clock;
use crate::fleet::health_flags::Demotion;
use crate::fleet::models::{self, Serving};
use crate::fleet::servers;
use crate::fleet::sessions::{SESSION, Session};
use crate::fleet::worker::Worker;
use crate::proxy::lane::{Lane, Scratch};
use crate::proxy::reply::{self, Reason, Reply};

/// What a request needs of its worker.
#[derive(Default)]
pub struct Needs {
    /// The requested model, if workers serve different ones; otherwise empty.
    model: Vec<u8>,
    /// The id of the worker that keeps the response that is asked for or followed.
    keeper: Option<u32>,
}

impl Needs {
    pub fn serving(&self, fleet: &[Arc<Worker>]) -> Serving<'_> {
        match self.keeper {
            Some(id) => Serving::Keeper(id),
            None => Serving::of(fleet, &self.model),
        }
    }
}

/// A worker for the request, from the best tier that has workers other than those `tried`. Sets what the request
/// `needs`.
pub fn choose<'a>(
    lane: &'a Lane,
    parts: &Parts,
    body: &[u8],
    tried: &[u32],
    needs: &mut Needs,
) -> Option<(Arc<Worker>, Claim<'a>)> {
    let proxy = &lane.proxy;
    let fleet = proxy.fleet.read();
    let mut scratch = lane.scratch.borrow_mut();
    let Scratch {
        key,
        tokens,
        eligible,
    } = &mut *scratch;
    key.clear();
    tokens.clear();
    let by_model = proxy.models.differ();
    let mut request = RequestKey::default();
    let mut found = Scan::default();
    let path = parts.uri.path();
    if by_model || proxy.policy.reads_request() || servers::makes_response(path) {
        found = scan(body, key);
        let has_events =
            |policy: &dyn Policy| policy.blocks().is_some_and(|blocks| blocks.covered() > 0);
        if !found.token_ids.is_empty() && has_events(&*proxy.policy) {
            read_token_ids(found.token_ids, found.is_cut, tokens);
        }
        let session = parts
            .headers
            .get(SESSION)
            .map_or(found.user, |value| value.as_bytes());
        request = RequestKey {
            text: key,
            tokens,
            model: &found.model,
            session,
            is_incomparable: found.has_media || found.is_cut || found.bypasses_cache,
            is_retry: false,
        };
    }
    request.is_retry = !tried.is_empty();
    needs.model.clear();
    if by_model {
        needs
            .model
            .extend_from_slice(&models::named(parts, &found.model));
    }
    // It stays the same for all attempts: no other worker has what is asked for.
    needs.keeper = needs
        .keeper
        .or_else(|| servers::keeper(&fleet, path, found.previous));
    if eligible
        .find(&fleet, tried, needs.serving(&fleet))
        .is_empty()
    {
        return None;
    }
    let session = match proxy.policy.places_sessions() {
        true => None,
        false => Session::of(&parts.headers),
    };
    let now = clock::now();
    let known = session.and_then(|session| proxy.sessions.worker(session, now));
    let only = known.and_then(|id| eligible.only(&fleet, id));
    let among = only.unwrap_or(0..eligible.candidates().len());
    let first = among.start;
    let (index, claim) = proxy.policy.choose(&eligible.candidates()[among], &request);
    let worker = fleet[eligible.position(first + index)].clone();
    if let Some(session) = session {
        proxy.sessions.place(session, worker.id, now);
    }
    Some((worker, claim))
}

/// The last worker that was tried and why it failed; empty if none was tried.
#[derive(Default)]
pub struct LastFailure {
    /// For the client: without anything that reveals the fleet's addresses, unless the client may know them.
    pub shown: String,
    pub logged: String,
}

impl LastFailure {
    pub fn of(worker: &Worker, error: &str, sees_urls: bool) -> LastFailure {
        let logged = format!("worker {}: {error}", worker.url);
        let shown = match sees_urls {
            true => logged.clone(),
            false => format!("worker {}, and the router's log says why", worker.id),
        };
        LastFailure { shown, logged }
    }

    /// An error that names the worker; the log also says why it failed. `say` puts that into a sentence.
    pub fn reply(&self, reason: Reason, say: impl Fn(&str) -> String) -> Reply {
        reply::error_logged(reason, &say(&self.shown), say(&self.logged))
    }
}

/// The answer to a request that no worker could take.
pub fn no_worker(lane: &Lane, failure: &LastFailure, sees_urls: bool) -> Reply {
    lane.proxy.metrics.unserved.fetch_add(1, Relaxed);
    let fleet = lane.proxy.fleet.read();
    if !failure.shown.is_empty() {
        return failure.reply(Reason::WorkersDown, |last| {
            format!("no worker could serve the request; the last one tried was {last}")
        });
    }
    let (reason, message) = if fleet.is_empty() {
        let message = "the router has no workers; add one with POST /workers".to_owned();
        (Reason::NoWorkers, message)
    } else if let Some(worker) = fleet.iter().find(|worker| worker.flags.is(Demotion::Loop)) {
        let url = worker.name(sees_urls);
        let message = format!(
            "worker {url} is a router that sends requests back to this one, and there is no other worker \
             that takes requests: take this router out of the workers of {url} or of a router behind it"
        );
        (Reason::RoutingLoop, message)
    } else {
        let message = "every worker that could serve the request is draining; POST /workers with its url \
                       lets one serve again";
        (Reason::WorkersDraining, message.to_owned())
    };
    reply::error(reason, &message)
}
