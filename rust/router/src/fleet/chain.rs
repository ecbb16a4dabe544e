//! Routers behind routers. Each has a name, and its `/health` lists it, followed by the names of the routers
//! that its workers lead to. One that finds itself in a worker's list would get its own requests back. That
//! is found out beside the requests, which carry nothing for it.
//!
//! Of a ring one way has to be given up, and one is enough: the router that does so no longer lists where
//! that way leads, so that no other one finds itself in its own worker's list. Should it have no way left, it
//! says so with 508; then the one before gives up too, until the turn comes to one that has a worker outside
//! the ring, and those behind it have their ways back.

use std::collections::BTreeSet;

use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response, StatusCode};

use crate::base::headers::ROUTERS;
use crate::base::log::Log;
use crate::fleet::standing::Behind;
use crate::fleet::worker::{Fleet, Worker};

/// Where a worker leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// To workers, or it is one.
    On,
    /// Over other routers to this one, or to itself.
    Back,
    /// It is this router.
    Here,
}

/// What the router of this name answers to a health check.
pub fn list(fleet: &Fleet, name: &str) -> HeaderValue {
    let fleet = fleet.read();
    let behind: Vec<_> = fleet.iter().map(|worker| worker.routers.load()).collect();
    let behind: BTreeSet<&str> = behind
        .iter()
        .flat_map(|names| names.iter())
        .map(String::as_str)
        .collect();
    let names: Vec<&str> = std::iter::once(name).chain(behind).collect();
    HeaderValue::from_str(&names.join(", ")).expect("the names came in headers")
}

/// Whether each of the workers leads back.
pub fn is_closed(fleet: &Fleet) -> bool {
    let fleet = fleet.read();
    !fleet.is_empty() && fleet.iter().all(|worker| worker.standing.is(Behind::Loop))
}

/// Takes note of what a worker answers to a health check of the router of this name.
pub fn learn<B>(name: &str, worker: &Worker, answer: &Response<B>, log: &Log) -> Leads {
    let names = read(answer.headers());
    let leads = match names.iter().position(|each| each == name) {
        Some(0) => return Leads::Here,
        Some(_) => Leads::Back,
        None if answer.status() == StatusCode::LOOP_DETECTED && !names.is_empty() => Leads::Back,
        None => Leads::On,
    };
    let url = &worker.url;
    if leads == Leads::Back {
        forget(worker);
        if worker.standing.put_behind(Behind::Loop) {
            let text = "worker is a router that leads back to this one, or to itself: it gets no requests; \
                        take this router out of the workers of that one, or of one behind it";
            log.warn(text, &[("worker", url)]);
        }
    } else {
        worker.routers.store(names.into());
        if worker.standing.bring_back(Behind::Loop) {
            log.info("worker does not lead back any more", &[("worker", url)]);
        }
    }
    leads
}

/// Nothing is behind a worker that cannot be reached: a ring over it is open.
pub fn forget(worker: &Worker) {
    worker.routers.store(Default::default());
}

fn read(headers: &HeaderMap) -> Vec<String> {
    let lists = headers.get_all(ROUTERS).iter();
    lists
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}
