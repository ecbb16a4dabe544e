//! The pace at which waiting requests have their turn.

use std::time::{Duration, Instant};

const LONGEST_RETRY_AFTER: f64 = 60.0;
/// Weight of the last time between two turns in their mean.
const WEIGHT: f64 = 1.0 / 32.0;

/// When refused requests may come back: at the latest pace at which waiting ones had their turn.
///
/// Each is asked to come when half of the queue, and those that were refused before it, have had their turn. So
/// they come one after another, find room, and the queue is not empty before they are there. If it is, they have not
/// come back, and nothing is kept for them.
#[derive(Default)]
pub struct TurnPace {
    last: Option<Instant>,
    /// Seconds between two turns.
    mean: Option<f64>,
    promised: Option<Instant>,
}

impl TurnPace {
    /// A request that waited has its turn, since another one has ended.
    pub fn begun(&mut self, now: Instant) {
        if let Some(last) = self.last {
            let seconds = now.saturating_duration_since(last).as_secs_f64();
            let mean = self.mean.unwrap_or(seconds);
            self.mean = Some(mean + WEIGHT * (seconds - mean));
        }
        self.last = Some(now);
    }

    /// A request has ended and none waited: the time until the next turn says nothing of the pace.
    pub fn pause(&mut self) {
        self.last = None;
    }

    /// The time until a request has its turn that so many others have before it; None if nothing is known.
    pub fn wait(&self, ahead: usize) -> Option<Duration> {
        let mean = self.mean?;
        Duration::try_from_secs_f64(mean * (ahead + 1) as f64).ok()
    }

    /// The queue was empty: who was refused before has not come back.
    pub fn forget(&mut self) {
        self.promised = None;
    }

    /// Seconds after which a request that is refused now may come back, 1 to 60. `waiting` is how many wait.
    pub fn promise(&mut self, now: Instant, waiting: usize) -> u64 {
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
            pace.begun(now);
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
    fn a_wait_is_known_from_those_before_it() {
        let (pace, _) = every(3.0, 10);
        assert_eq!(pace.wait(0), Some(Duration::from_secs(3)));
        assert_eq!(pace.wait(9), Some(Duration::from_secs(30)));
        assert_eq!(TurnPace::default().wait(9), None);
    }

    #[test]
    fn without_a_turn_they_come_soon() {
        assert_eq!(TurnPace::default().promise(Instant::now(), 1000), 1);
    }

    #[test]
    fn time_without_waiting_requests_is_no_pace() {
        let (mut pace, now) = every(1.0, 4);
        pace.pause();
        let later = now + Duration::from_secs(500);
        pace.begun(later);
        assert_eq!(pace.promise(later, 2), 2);
    }
}
