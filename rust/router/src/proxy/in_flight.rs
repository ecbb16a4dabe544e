//! How many requests may be at workers at once, and how many more may wait for their turn.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::proxy::reply::{Reason, Refusal};

/// Shared by all lanes. Requests that wait get their turn in the order in which they came.
pub struct InFlight {
    /// Places for requests; None where their number is not limited.
    places: Option<Semaphore>,
    limit: usize,
    waiting: AtomicUsize,
    queue_size: usize,
    queue_timeout: Duration,
}

impl InFlight {
    /// `limit` is None where the number of requests is not limited.
    pub fn new(limit: Option<usize>, queue_size: usize, queue_timeout: Duration) -> Self {
        InFlight {
            places: limit.map(Semaphore::new),
            limit: limit.unwrap_or(0),
            waiting: AtomicUsize::new(0),
            queue_size,
            queue_timeout,
        }
    }

    pub fn is_limited(&self) -> bool {
        self.places.is_some()
    }

    /// Refuses at once what would be refused a place now.
    pub fn has_room(&self) -> Result<(), Refusal> {
        let is_full = self
            .places
            .as_ref()
            .is_some_and(|places| places.available_permits() == 0);
        match is_full && self.waiting() >= self.queue_size {
            true => Err(self.full()),
            false => Ok(()),
        }
    }

    fn full(&self) -> Refusal {
        let what = match self.queue_size {
            0 => "which is the limit".to_owned(),
            size => format!("which is the limit, and {size} more are waiting"),
        };
        refusal(format!("{} requests are in flight, {what}", self.limit))
    }

    /// Takes a place; whether there was one to take, which is to be given back.
    pub async fn enter(&self) -> Result<bool, Refusal> {
        let Some(places) = &self.places else {
            return Ok(false);
        };
        if let Ok(place) = places.try_acquire() {
            place.forget();
            return Ok(true);
        }
        let Some(_waiting) = Waiting::new(self) else {
            return Err(self.full());
        };
        match timeout(self.queue_timeout, places.acquire()).await {
            Ok(place) => {
                place.expect("the semaphore is never closed").forget();
                Ok(true)
            }
            Err(_) => {
                let (limit, waited) = (self.limit, self.queue_timeout.as_secs_f64());
                Err(refusal(format!(
                    "{limit} requests are in flight, and none ended within {waited} s"
                )))
            }
        }
    }

    /// Gives a place back.
    pub fn leave(&self) {
        if let Some(places) = &self.places {
            places.add_permits(1);
        }
    }

    /// Requests that wait for a place.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

fn refusal(message: String) -> Refusal {
    Refusal::new(Reason::RateLimitExceeded, message)
}

/// A place in the queue, for as long as it lives.
struct Waiting<'a>(&'a InFlight);

impl<'a> Waiting<'a> {
    fn new(in_flight: &'a InFlight) -> Option<Self> {
        let before = in_flight.waiting.fetch_add(1, Relaxed);
        let place = Waiting(in_flight);
        (before < in_flight.queue_size).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
