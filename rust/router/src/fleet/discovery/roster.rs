//! Keeps the fleet in step with the lists of workers.

use std::sync::Arc;

use crate::fleet::worker::{Authorization, Fleet, Worker};

/// The workers that are in the fleet because a source lists them. It changes no others.
pub struct Roster {
    fleet: Arc<Fleet>,
    /// What each source lists.
    sources: Vec<Vec<String>>,
    listed: Vec<Arc<Worker>>,
    /// Workers that are no longer listed and not idle yet.
    leaving: Vec<Arc<Worker>>,
}

impl Roster {
    pub fn new(fleet: Arc<Fleet>, sources: usize) -> Roster {
        Roster {
            fleet,
            sources: vec![Vec::new(); sources],
            listed: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Takes a source's present list. URLs are spelled as `WorkerUrl` spells them.
    pub fn list(&mut self, source: usize, urls: Vec<String>) {
        self.sources[source] = urls;
        let wanted: Vec<&String> = self.sources.iter().flatten().collect();
        let (listed, vanished): (Vec<_>, Vec<_>) = std::mem::take(&mut self.listed)
            .into_iter()
            .partition(|worker| wanted.contains(&&worker.url));
        self.listed = listed;
        for worker in vanished {
            tracing::info!(
                worker = worker.url,
                "a worker is listed no more: it gets no requests, and leaves once it is idle"
            );
            worker.set_draining(true);
            self.leaving.push(worker);
        }
        for url in wanted {
            if self.listed.iter().any(|worker| worker.url == *url) {
                continue;
            }
            let position = self.leaving.iter().position(|worker| worker.url == *url);
            let came_back = position.map(|position| self.leaving.remove(position));
            // A worker that was added by hand is not the roster's.
            if came_back.is_none() && self.fleet.find(url).is_some() {
                continue;
            }
            let Ok(read) = url.parse() else {
                continue;
            };
            tracing::info!(worker = url, "a worker is listed");
            self.listed
                .push(self.fleet.add(read, Authorization::OfFleet).0);
        }
    }

    /// Removes workers from the fleet that are no longer listed and have no more requests.
    pub fn remove_idle(&mut self) {
        let fleet = &self.fleet;
        self.leaving.retain(|worker| {
            // A worker that was returned to service by hand is not the roster's any more.
            let is_leaving = worker.is_draining();
            if is_leaving && worker.load() == 0 {
                fleet.remove(worker);
                return false;
            }
            is_leaving
        });
    }
}
