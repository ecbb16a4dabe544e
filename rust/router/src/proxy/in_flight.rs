//! Limits how many requests are at workers at once, and how many more wait for their turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Lets a request go to a worker. Dropping it gives it back.
pub type Permit = OwnedSemaphorePermit;

/// Why a request gets no permit.
pub struct NoPermit(pub String);

/// The limit for all lanes together. Waiting requests get their turn in the order in which they came.
pub struct InFlight {
    /// One permit for each request; None if their number is not limited.
    permits: Option<Arc<Semaphore>>,
    limit: usize,
    waiting: AtomicUsize,
    queue_size: usize,
    queue_timeout: Duration,
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
        NoPermit(format!("{} requests are in flight, {what}", self.limit))
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
            Ok(permit) => Ok(Some(permit.expect("the semaphore is never closed"))),
            Err(_) => {
                let (limit, waited) = (self.limit, self.queue_timeout.as_secs_f64());
                Err(NoPermit(format!(
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
        (before < in_flight.queue_size).then_some(ticket)
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
