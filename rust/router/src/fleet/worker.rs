//! A worker, which is a server behind the router, and the fleet of all workers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use sglang_omni_policy::{Candidate, url_hash};
use tokio::sync::Notify;

use crate::base::clock::Tick;
use crate::base::histogram::Histogram;
use crate::base::protocol_key;
use crate::fleet::changes;
use crate::fleet::event_state::EventState;
use crate::fleet::health_flags::{Demotion, Health, HealthFlags};
use crate::fleet::slots::Slot;
use crate::fleet::wait_history::WaitHistory;
use crate::fleet::work::Work;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::worker_url::WorkerUrl;

pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The limit for a worker that is known to be down: no request should wait long to find out that it still is.
const CONNECT_TIMEOUT_DOWN: Duration = Duration::from_millis(500);

/// One server. Counters are relaxed atomics: each is right by itself, but several are no snapshot.
pub struct Worker {
    /// Each new worker gets a higher id when it joins a fleet. So a fleet is sorted by id, and a worker that comes
    /// back is another one.
    pub id: u32,
    slot: Slot,
    /// `http://host:port` or `https://host:port`, as shown to users.
    pub url: String,
    url_hash: u64,
    pub url_header: HeaderValue,
    pub authority: HeaderValue,
    pub endpoint: Arc<Endpoint>,
    pub authorization: Authorization,
    pub flags: HealthFlags,
    pub wait_history: WaitHistory,
    /// What it publishes of its cache.
    pub cache_events: EventState,
    pub work: Work,
    draining: AtomicBool,
    /// Sorted names of the models it serves; None if they are not known.
    models: ArcSwapOption<Vec<String>>,
    /// Names of the routers that a request to it may pass; empty if it is no router.
    pub routers: ArcSwap<Vec<String>>,
    /// Names of the servers at it or behind it, which begin the ids of the responses that they keep.
    pub servers: ArcSwap<Vec<String>>,
    pub requests: AtomicU64,
    pub failures: AtomicU64,
    /// Time to the first bytes of its answers.
    pub ttfb: Histogram,
}

/// The `Authorization` that a worker is shown.
pub enum Authorization {
    /// The one for all workers of the configuration.
    OfFleet,
    /// A key of its own.
    Own(HeaderValue),
    /// None: the fleet's key is not for this worker.
    Nothing,
}

/// A worker that was taken for hung, and goes on by itself within so many ticks, was not.
const LONGEST_BREAK: Tick = 20;

static NEXT_ID: AtomicU32 = AtomicU32::new(0);

impl Worker {
    pub fn new(url: WorkerUrl, authorization: Authorization) -> Worker {
        let id = NEXT_ID.fetch_add(1, Relaxed);
        Worker {
            id,
            endpoint: Arc::new(Endpoint::new(id, &url)),
            slot: Slot::take(),
            url_hash: url_hash(url.as_str()),
            url: url.as_str().to_owned(),
            authorization,
            url_header: url.header,
            authority: url.authority,
            flags: HealthFlags::default(),
            wait_history: WaitHistory::default(),
            cache_events: EventState::default(),
            work: Work::default(),
            draining: AtomicBool::new(false),
            models: ArcSwapOption::empty(),
            routers: ArcSwap::default(),
            servers: ArcSwap::default(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            ttfb: Histogram::default(),
        }
    }

    /// Its index in tables of workers. No other worker gets it as long as anything, such as a request, holds this one.
    pub fn slot(&self) -> u32 {
        self.slot.index()
    }

    pub fn health(&self) -> Health {
        self.flags.health()
    }

    /// Its name for clients: its URL if they may see that, otherwise its id.
    pub fn name(&self, sees_urls: bool) -> String {
        match sees_urls {
            true => self.url.clone(),
            false => self.id.to_string(),
        }
    }

    /// Puts the worker's own key into a request's headers, or removes the key if the worker may see none.
    pub fn authorize(&self, headers: &mut HeaderMap) {
        match &self.authorization {
            Authorization::OfFleet => return,
            Authorization::Own(key) => drop(headers.insert(AUTHORIZATION, key.clone())),
            Authorization::Nothing => drop(headers.remove(AUTHORIZATION)),
        }
        protocol_key::hide(headers);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Relaxed);
        changes::count();
    }

    /// Sorted names of the models it serves, if they are known.
    pub fn models(&self) -> Option<Arc<Vec<String>>> {
        self.models.load_full()
    }

    pub fn set_models(&self, models: Option<Vec<String>>) {
        self.models.store(models.map(Arc::new));
    }

    /// A part of a stream came, for which a client has `waited` since then if nothing was there.
    pub fn sent_of_stream(&self, waited: Option<Tick>, now: Tick) {
        if let Some(since) = waited {
            let silence = now.saturating_sub(since.max(self.flags.last_heard()));
            // Most are shorter than two ticks. How long it hung is not learned; if not for long, it did not.
            let hung = self.flags.last_hung() >= since && silence > LONGEST_BREAK;
            if silence > 1 && !hung {
                self.work.was_silent(silence, now);
            }
        }
        self.flags.heard_from(now);
    }

    /// Whether both may serve the same model, so that one can be measured by the other.
    pub fn is_like(&self, other: &Worker) -> bool {
        match (self.models(), other.models()) {
            (Some(mine), Some(others)) => mine.iter().any(|model| others.contains(model)),
            _ => true,
        }
    }

    /// Whether a model is in its list; None if it has no list. `base:adapter` counts as `base`.
    pub fn lists(&self, model: &[u8]) -> Option<bool> {
        let models = self.models.load();
        let models = models.as_ref()?;
        let has = |name: &[u8]| {
            models
                .binary_search_by(|known| known.as_bytes().cmp(name))
                .is_ok()
        };
        let base = model.iter().rposition(|&byte| byte == b':');
        Some(has(model) || base.is_some_and(|end| has(&model[..end])))
    }

    /// How long a request waits for a new connection to it.
    pub fn connect_limit(&self) -> Duration {
        match self.flags.is(Demotion::Down) {
            true => CONNECT_TIMEOUT_DOWN,
            false => CONNECT_TIMEOUT,
        }
    }

    /// What a policy is told of it.
    pub fn candidate(&self) -> Candidate {
        Candidate {
            slot: self.slot(),
            load: self.load(),
            url_hash: self.url_hash,
        }
    }

    /// Where its requests in flight are counted.
    pub fn load_counter(&self) -> &'static AtomicU32 {
        self.slot.load()
    }

    /// Requests in flight.
    pub fn load(&self) -> usize {
        self.slot.load().load(Relaxed) as usize
    }
}

/// Counts one request as in flight at a worker for as long as it lives.
pub struct LoadGuard(Arc<Worker>);

impl LoadGuard {
    pub fn new(worker: Arc<Worker>) -> Self {
        worker.slot.load().fetch_add(1, Relaxed);
        LoadGuard(worker)
    }

    pub fn worker(&self) -> &Arc<Worker> {
        &self.0
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.slot.load().fetch_sub(1, Relaxed);
    }
}

/// The list of workers: every request reads it without a lock, a change replaces it.
pub struct Fleet {
    workers: ArcSwap<Vec<Arc<Worker>>>,
    changing: Mutex<()>,
    /// Notified of every added worker; there is one listener.
    pub added: Notify,
    /// Notified of every removed worker; there is one listener.
    pub removed: Notify,
    on_added: Box<dyn Fn(&Worker) + Send + Sync>,
}

impl Fleet {
    /// `on_added` is called for every worker that is added after the start, on the thread that adds it.
    pub fn new(urls: Vec<WorkerUrl>, on_added: impl Fn(&Worker) + Send + Sync + 'static) -> Self {
        let of_fleet = |url| Arc::new(Worker::new(url, Authorization::OfFleet));
        let workers = urls.into_iter().map(of_fleet);
        Fleet {
            workers: ArcSwap::from_pointee(workers.collect()),
            changing: Mutex::new(()),
            added: Notify::new(),
            removed: Notify::new(),
            on_added: Box::new(on_added),
        }
    }

    pub fn read(&self) -> arc_swap::Guard<Arc<Vec<Arc<Worker>>>> {
        self.workers.load()
    }

    pub fn has(&self, worker: &Worker) -> bool {
        let workers = self.read();
        workers
            .binary_search_by_key(&worker.id, |known| known.id)
            .is_ok()
    }

    pub fn find(&self, url: &str) -> Option<Arc<Worker>> {
        self.read().iter().find(|worker| worker.url == url).cloned()
    }

    /// Adds a worker, or returns the worker of that URL to service. The bool says whether it is new.
    pub fn add(&self, url: WorkerUrl, authorization: Authorization) -> (Arc<Worker>, bool) {
        let changing = self.changing.lock().unwrap();
        if let Some(known) = self.find(url.as_str()) {
            known.set_draining(false);
            return (known, false);
        }
        let worker = Arc::new(Worker::new(url, authorization));
        let mut workers = Vec::clone(&self.read());
        workers.push(worker.clone());
        self.workers.store(Arc::new(workers));
        changes::count();
        self.added.notify_one();
        drop(changing);
        (self.on_added)(&worker);
        (worker, true)
    }

    /// Removes a worker, if it is there; the requests that it is serving go on to their end.
    pub fn remove(&self, worker: &Worker) -> bool {
        let changing = self.changing.lock().unwrap();
        let workers = self.read();
        let rest: Vec<_> = workers
            .iter()
            .filter(|known| known.id != worker.id)
            .cloned()
            .collect();
        let was_there = rest.len() < workers.len();
        self.workers.store(Arc::new(rest));
        changes::count();
        drop(changing);
        if was_there {
            worker.set_draining(true);
            self.removed.notify_one();
        }
        was_there
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    pub fn fleet(count: usize) -> Vec<Arc<Worker>> {
        (1..=count)
            .map(|port| format!("http://w:{port}").parse().unwrap())
            .map(|url| Arc::new(Worker::new(url, Authorization::OfFleet)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> WorkerUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_fleet_is_in_the_order_of_its_ids() {
        let fleet = Fleet::new(vec![url("http://b:1")], |_| ());
        let (added, _) = fleet.add(url("http://a:1"), Authorization::OfFleet);
        assert_eq!(fleet.read()[1].url, "http://a:1");
        assert!(fleet.read().is_sorted_by_key(|worker| worker.id));
        assert!(fleet.has(&added));
    }

    #[test]
    fn a_removed_worker_leaves_the_fleet_but_not_its_requests() {
        let fleet = Fleet::new(vec![url("http://a:1")], |_| ());
        let removed = fleet.find("http://a:1").unwrap();
        let guard = LoadGuard::new(removed.clone());
        assert!(fleet.remove(&removed) && !fleet.remove(&removed));
        assert!(fleet.read().is_empty());
        assert_eq!(removed.load(), 1);
        let (again, new) = fleet.add(url("http://a:1"), Authorization::OfFleet);
        assert!(new && again.id > removed.id);
        assert_ne!(again.slot(), removed.slot());
        drop(guard);
        assert_eq!(removed.load(), 0);
    }

    #[test]
    fn workers_that_come_and_go_leave_no_gaps_in_tables() {
        let fleet = Fleet::new(Vec::new(), |_| ());
        let mut slots = std::collections::HashSet::new();
        for index in 0..2000 {
            let (worker, _) = fleet.add(
                url(&format!("http://a:{}", 1 + index)),
                Authorization::OfFleet,
            );
            slots.insert(worker.slot());
            fleet.remove(&worker);
        }
        // Other tests of this process have workers too.
        assert!(slots.len() < 200, "{}", slots.len());
    }
}
