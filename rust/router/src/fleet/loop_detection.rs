//! Finds workers that are routers and would send requests back to this router, or to themselves.
//!
//! Each router has a name. Its `/health` lists that name, followed by those of the routers that its workers lead
//! to. A router that finds itself in a worker's list would get its own requests back, and sends that worker none.
//! Requests carry nothing for this.
//!
//! To open a ring of routers, one of them must stop using its worker in the ring. It then no longer lists the routers
//! behind that worker, so no other router of the ring finds itself in a list. If it has no other worker, it answers
//! `/health` with 508; then the router before it stops too, and so on, up to one that has a worker outside the ring.
//! The routers after that one may then use their workers again.

use std::collections::BTreeSet;

use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};

use crate::base::headers::{self, ROUTERS};
use crate::fleet::health_flags::Demotion;
use crate::fleet::worker::{Fleet, Worker};

/// Where a request to a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// At that worker, or behind it.
    Clear,
    /// At this router again, or nowhere.
    Loop,
    /// The worker is this router.
    ThisRouter,
}

/// The list of routers with which the router of this name answers health checks.
pub fn list(fleet: &Fleet, name: &str) -> HeaderValue {
    let fleet = fleet.read();
    let behind: Vec<_> = fleet.iter().map(|worker| worker.routers.load()).collect();
    let behind: BTreeSet<&str> = behind
        .iter()
        .flat_map(|names| names.iter())
        .map(String::as_str)
        .collect();
    let names: Vec<&str> = std::iter::once(name).chain(behind).collect();
    headers::list(&names)
}

/// Whether every worker leads to a loop.
pub fn is_closed(fleet: &Fleet) -> bool {
    let fleet = fleet.read();
    !fleet.is_empty() && fleet.iter().all(|worker| worker.flags.is(Demotion::Loop))
}

/// Takes note of a worker's answer to a health check of the router of this name.
pub fn learn<B>(name: &str, worker: &Worker, answer: &Response<B>) -> Destination {
    let names = headers::names(answer.headers(), &ROUTERS);
    let destination = match names.iter().position(|each| each == name) {
        Some(0) => return Destination::ThisRouter,
        Some(_) => Destination::Loop,
        None if answer.status() == StatusCode::LOOP_DETECTED && !names.is_empty() => {
            Destination::Loop
        }
        None => Destination::Clear,
    };
    if destination == Destination::Loop {
        forget(worker);
        if worker.flags.demote(Demotion::Loop) {
            tracing::warn!(
                worker = worker.url,
                "worker is a router that leads back to this one, or to itself: it gets no requests; \
                 take this router out of the workers of that one, or of one behind it"
            );
        }
    } else {
        worker.routers.store(names.into());
        if worker.flags.restore(Demotion::Loop) {
            tracing::info!(worker = worker.url, "worker does not lead back any more");
        }
    }
    destination
}

/// Forgets the routers behind a worker that cannot be reached: no ring goes through it.
pub fn forget(worker: &Worker) {
    worker.routers.store(Default::default());
}
