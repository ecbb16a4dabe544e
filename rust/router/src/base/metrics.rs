//! The router's counters. Each lane has its own, so that no two lanes share a cache line; readers add them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::base::end::End;
use crate::base::histogram::{Histogram, Snapshot};
use crate::base::route::Route;

/// Statuses that metrics tell apart; others go by their class.
const STATUSES: [u16; 24] = [
    200, 101, 400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 431, 499, 500, 501, 502, 503, 504,
    201, 204, 206, 304, 307,
];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const STATUS_COUNT: usize = STATUSES.len() + CLASSES.len();

#[derive(Default)]
pub struct Metrics {
    lanes: Box<[LaneMetrics]>,
    pub retries: AtomicU64,
    /// Requests that no worker could take.
    pub unserved: AtomicU64,
    /// Retries that the budget did not allow.
    pub retries_refused: AtomicU64,
}

/// One lane's counters, on cache lines of their own.
#[repr(align(128))]
#[derive(Default)]
pub struct LaneMetrics {
    routes: [RouteMetrics; Route::COUNT],
    /// Requests on their way to a worker, or at one.
    pub in_flight: AtomicU64,
    /// Requests by how they ended.
    ended: [AtomicU64; End::NAMES.len()],
    received_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    /// Client connections that are open.
    pub connections: AtomicU64,
    /// Client connections accepted so far.
    pub accepted: AtomicU64,
    pub failed_handshakes: AtomicU64,
    /// Clients that were cut because they took their answers too slowly.
    pub slow_clients: AtomicU64,
}

#[derive(Default)]
struct RouteMetrics {
    statuses: [AtomicU64; STATUS_COUNT],
    /// Until the first bytes of a worker's answer.
    ttfb: Histogram,
    duration: Histogram,
}

impl LaneMetrics {
    pub fn finish(&self, route: Route, status: u16, end: End, received: u64, sent: u64) {
        let statuses = &self.routes[route.index()].statuses;
        statuses[status_index(status)].fetch_add(1, Relaxed);
        self.ended[end as usize].fetch_add(1, Relaxed);
        self.received_bytes.fetch_add(received, Relaxed);
        self.sent_bytes.fetch_add(sent, Relaxed);
    }

    pub fn observe(&self, route: Route, ttfb: Option<Duration>, took: Duration) {
        let metrics = &self.routes[route.index()];
        metrics.duration.observe(took);
        if let Some(ttfb) = ttfb {
            metrics.ttfb.observe(ttfb);
        }
    }
}

fn status_index(status: u16) -> usize {
    let known = STATUSES.iter().position(|&known| known == status);
    known.unwrap_or_else(|| STATUSES.len() + usize::from(status / 100).clamp(1, CLASSES.len()) - 1)
}

impl Metrics {
    pub fn new(lanes: usize) -> Self {
        Metrics {
            lanes: (0..lanes).map(|_| LaneMetrics::default()).collect(),
            ..Metrics::default()
        }
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    pub fn lane(&self, index: usize) -> &LaneMetrics {
        &self.lanes[index]
    }

    /// One counter, summed over the lanes.
    pub fn sum(&self, read: impl Fn(&LaneMetrics) -> &AtomicU64) -> u64 {
        let counts = self.lanes.iter().map(|lane| read(lane).load(Relaxed));
        // What one lane began another may end.
        counts.fold(0, u64::wrapping_add)
    }

    /// The statuses of this route's answers, and how often each was sent.
    pub fn answers(&self, route: Route) -> impl Iterator<Item = (String, u64)> {
        let count =
            move |index: usize| self.sum(|lane| &lane.routes[route.index()].statuses[index]);
        let name = |index: usize| match STATUSES.get(index) {
            Some(status) => status.to_string(),
            None => CLASSES[index - STATUSES.len()].to_owned(),
        };
        (0..STATUS_COUNT)
            .map(move |index| (index, count(index)))
            .filter(|&(_, count)| count > 0)
            .map(move |(index, count)| (name(index), count))
    }

    fn merged(&self, read: impl Fn(&LaneMetrics) -> &Histogram) -> Snapshot {
        let mut merged = Snapshot::default();
        for lane in &self.lanes {
            merged.add(&read(lane).read());
        }
        merged
    }

    pub fn ttfb(&self, route: Route) -> Snapshot {
        self.merged(|lane| &lane.routes[route.index()].ttfb)
    }

    pub fn duration(&self, route: Route) -> Snapshot {
        self.merged(|lane| &lane.routes[route.index()].duration)
    }

    /// Requests that have ended in this way.
    pub fn ended(&self, end: usize) -> u64 {
        self.sum(|lane| &lane.ended[end])
    }

    /// Requests on their way to a worker, or at one.
    pub fn in_flight(&self) -> u64 {
        self.sum(|lane| &lane.in_flight)
    }

    pub fn received_bytes(&self) -> u64 {
        self.sum(|lane| &lane.received_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_add_up() {
        let metrics = Metrics::new(2);
        let chat = Route::of("/v1/chat/completions");
        for (lane, status) in [(0, 200), (1, 200), (1, 418), (0, 599), (0, 999)] {
            metrics
                .lane(lane)
                .finish(chat, status, End::Complete, 10, 100);
            metrics
                .lane(lane)
                .observe(chat, None, Duration::from_millis(1));
        }
        metrics.lane(0).in_flight.fetch_add(2, Relaxed);
        metrics.lane(1).in_flight.fetch_sub(1, Relaxed);
        let answers: Vec<(String, u64)> = metrics.answers(chat).collect();
        let expected = [("200", 2), ("4xx", 1), ("5xx", 2)];
        assert_eq!(
            answers,
            expected.map(|(name, count)| (name.to_owned(), count))
        );
        let sent_bytes = metrics.sum(|lane| &lane.sent_bytes);
        assert_eq!((metrics.received_bytes(), sent_bytes), (50, 500));
        assert_eq!(
            (metrics.duration(chat).count(), metrics.ttfb(chat).count()),
            (5, 0)
        );
        assert_eq!(metrics.in_flight(), 1);
    }
}
