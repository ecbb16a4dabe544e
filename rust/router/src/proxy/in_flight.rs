//! Limits how many requests are at workers at once, and how many more wait for their turn.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Lets a request go to a worker. Dropping it gives it back.
pub type Permit = OwnedSemaphorePermit;

const LONGEST_RETRY_AFTER: f64 = 60.0;
/// Weight of the last time between two turns in their mean.
const WEIGHT: f64 = 1.0 / 32.0;

/// A request that gets no permit.
pub struct NoPermit {
    pub why: String,
    /// Seconds after which its client may come back.
    pub retry_after: u64,
}

/// The limit for all lanes together. Waiting requests get their turn in the order in which they came.
pub struct InFlight {
    /// One permit for each request; None if their number is not limited.
    permits: Option<Arc<Semaphore>>,
    limit: usize,
    waiting: AtomicUsize,
    queue_size: usize,
    queue_timeout: Duration,
    pace: Mutex<TurnPace>,
}

impl InFlight {
    /// `limit` is None if the number of requests is not limited.
    pub fn new(limit: Option<usize>, queue_size: usize, queue_timeout: Duration) -> Self {
        InFlight {
            permits: limit.map(|limit| Arc::new(Semaphore::new(limit))),
            limit: limit.unwrap_or(0),
            waiting: AtomicUsize::new(0),
            queue_size,
            queue_timeout,
            pace: Mutex::new(TurnPace::default()),
        }
    }

    pub fn is_limited(&self) -> bool {
        self.permits.is_some()
    }

    /// An error if a request would be refused a permit now.
    pub fn has_room(&self) -> Result<(), NoPermit> {
        let is_full = self
            .permits
            .as_ref()
            .is_some_and(|permits| permits.available_permits() == 0);
        match is_full && self.waiting() >= self.queue_size {
            true => Err(self.full()),
            false => Ok(()),
        }
    }

    fn full(&self) -> NoPermit {
        let what = match self.queue_size {
            0 => "which is the limit".to_owned(),
            size => format!("which is the limit, and {size} more are waiting"),
        };
        self.refusal(format!("{} requests are in flight, {what}", self.limit))
    }

    fn refusal(&self, why: String) -> NoPermit {
        NoPermit {
            why,
            retry_after: self.pace().promise(Instant::now(), self.waiting()),
        }
    }

    fn pace(&self) -> MutexGuard<'_, TurnPace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit, or waits for one; None if their number is not limited.
    pub async fn enter(&self) -> Result<Option<Permit>, NoPermit> {
        let Some(permits) = &self.permits else {
            return Ok(None);
        };
        if let Ok(permit) = permits.clone().try_acquire_owned() {
            return Ok(Some(permit));
        }
        let Some(_ticket) = QueueTicket::new(self) else {
            return Err(self.full());
        };
        match timeout(self.queue_timeout, permits.clone().acquire_owned()).await {
            Ok(permit) => {
                // This request still counts as one that waits.
                let others_wait = self.waiting() > 1;
                self.pace().begun(Instant::now(), others_wait);
                Ok(Some(permit.expect("the semaphore is never closed")))
            }
            Err(_) => {
                let (limit, waited) = (self.limit, self.queue_timeout.as_secs_f64());
                Err(self.refusal(format!(
                    "{limit} requests are in flight, and none ended within {waited} s"
                )))
            }
        }
    }

    /// Requests that wait for a permit.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

/// Counts a request as waiting for as long as it lives.
struct QueueTicket<'a>(&'a InFlight);

impl<'a> QueueTicket<'a> {
    fn new(in_flight: &'a InFlight) -> Option<Self> {
        let before = in_flight.waiting.fetch_add(1, Relaxed);
        let ticket = QueueTicket(in_flight);
        if before == 0 {
            in_flight.pace().forget();
        }
        (before < in_flight.queue_size).then_some(ticket)
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// When refused requests may come back: at the latest pace at which waiting ones had their turn.
///
/// Each is asked to come when half of the queue, and those that were refused before it, have had their turn. So
/// they come one after another, find room, and the queue is not empty before they are there. If it is, they have not
/// come back, and nothing is kept for them.
#[derive(Default)]
struct TurnPace {
    last: Option<Instant>,
    /// Seconds between two turns.
    mean: Option<f64>,
    promised: Option<Instant>,
}

impl TurnPace {
    /// A request that waited has its turn.
    fn begun(&mut self, now: Instant, others_wait: bool) {
        if let Some(last) = self.last {
            let seconds = now.saturating_duration_since(last).as_secs_f64();
            let mean = self.mean.unwrap_or(seconds);
            self.mean = Some(mean + WEIGHT * (seconds - mean));
        }
        // If nobody waits, the time until the next turn says nothing of the pace.
        self.last = others_wait.then_some(now);
    }

    /// The queue was empty: who was refused before has not come back.
    fn forget(&mut self) {
        self.promised = None;
    }

    /// Seconds after which a request that is refused now may come back, 1 to 60. `waiting` is how many wait.
    fn promise(&mut self, now: Instant, waiting: usize) -> u64 {
        // Until two had their turn, nothing is known: the client asks again soon.
        let Some(mean) = self.mean else { return 1 };
        let promised = self
            .promised
            .map_or(0.0, |at| at.saturating_duration_since(now).as_secs_f64());
        let back = (waiting as f64 / 2.0 * mean).max(promised) + mean;
        let back = back.min(LONGEST_RETRY_AFTER);
        self.promised = Some(now + Duration::from_secs_f64(back));
        (back.ceil() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(seconds: f64, turns: u32) -> (TurnPace, Instant) {
        let mut pace = TurnPace::default();
        let mut now = Instant::now();
        for _ in 0..turns {
            now += Duration::from_secs_f64(seconds);
            pace.begun(now, true);
        }
        (pace, now)
    }

    #[test]
    fn a_refused_client_comes_when_half_of_the_queue_has_begun() {
        let (mut pace, now) = every(3.0, 10);
        assert_eq!(pace.promise(now, 9), 17);
    }

    #[test]
    fn refused_clients_come_one_after_another_and_within_a_minute() {
        let (mut pace, now) = every(2.0, 10);
        let seconds: Vec<u64> = (0..40).map(|_| pace.promise(now, 10)).collect();
        assert_eq!(seconds[..4], [12, 14, 16, 18]);
        assert_eq!(seconds[39], 60);
        // A minute later all of them are there.
        assert_eq!(pace.promise(now + Duration::from_secs(60), 10), 12);
    }

    #[test]
    fn nothing_is_kept_for_clients_that_have_not_come_back() {
        let (mut pace, now) = every(2.0, 10);
        let seconds: Vec<u64> = (0..40).map(|_| pace.promise(now, 10)).collect();
        assert_eq!(seconds[39], 60);
        pace.forget();
        assert_eq!(pace.promise(now, 10), 12);
    }

    #[test]
    fn without_a_turn_they_come_soon() {
        assert_eq!(TurnPace::default().promise(Instant::now(), 1000), 1);
    }

    #[test]
    fn time_without_waiting_requests_is_no_pace() {
        let (mut pace, now) = every(1.0, 4);
        pace.begun(now + Duration::from_secs(1), false);
        let later = now + Duration::from_secs(500);
        pace.begun(later, true);
        assert_eq!(pace.promise(later, 2), 2);
    }
}
