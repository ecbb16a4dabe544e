//! Puts workers behind that fail request after request while others do well, and gives those that are
//! behind their trials.

use std::sync::Arc;

use tokio::time::{MissedTickBehavior, interval};

use crate::base::clock::{self, TICK, Tick};
use crate::base::log::Log;
use crate::fleet::standing::Behind;
use crate::fleet::worker::{Fleet, Worker};

/// Ticks in which what is remembered of long waits is halved.
const FADE_EVERY: u64 = 240;

#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    /// Failures in a row that put a worker behind; None never does.
    pub threshold: Option<u32>,
    /// How long it then waits for its trial.
    pub recovery: Tick,
}

impl Breaker {
    /// Looks over the fleet, once a tick.
    pub fn sweep(&self, fleet: &[Arc<Worker>], now: Tick, log: &Log) {
        for worker in fleet {
            let standing = &worker.standing;
            standing.expire_busy(now);
            standing.offer_trial(now);
            let fails = self
                .threshold
                .is_some_and(|threshold| standing.streak() >= threshold);
            if fails && !standing.is(Behind::Failing) && others_do_well(fleet, worker) {
                standing.hold_trial(now.saturating_add(self.recovery));
                standing.put_behind(Behind::Failing);
                let failures = standing.streak();
                log.warn(
                    "worker fails while others do well",
                    &[("worker", &worker.url), ("failures", &failures)],
                );
            }
        }
    }
}

/// Keeps the clock going and has the breaker look over the fleet, once a tick, until the runtime ends.
pub async fn watch(fleet: Arc<Fleet>, breaker: Breaker, log: Arc<Log>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tick.tick().await;
        let fleet = fleet.read();
        breaker.sweep(&fleet, clock::advance(), &log);
        if count.is_multiple_of(FADE_EVERY) {
            fleet.iter().for_each(|worker| worker.first_bytes.fade());
        }
    }
}

/// Where all fail alike, the requests may be to blame, and nobody is put behind.
fn others_do_well(fleet: &[Arc<Worker>], worker: &Worker) -> bool {
    fleet.iter().any(|other| {
        other.id != worker.id
            && !other.is_draining()
            && other.standing.class() == 0
            && other.standing.streak() == 0
            && other.is_like(worker)
    })
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;
    use crate::fleet::standing::Health;
    use crate::fleet::worker::testing::fleet;

    const BREAKER: Breaker = Breaker {
        threshold: Some(3),
        recovery: 8,
    };

    fn fail(worker: &Worker, times: u32) {
        for _ in 0..times {
            worker.standing.answered(StatusCode::INTERNAL_SERVER_ERROR);
        }
    }

    #[test]
    fn only_failures_in_a_row_put_a_worker_behind() {
        let fleet = fleet(2);
        fail(&fleet[0], 2);
        fleet[0].standing.answered(StatusCode::OK);
        fail(&fleet[0], 2);
        BREAKER.sweep(&fleet, 1, &Log::nowhere());
        assert_eq!(fleet[0].standing.class(), 0);
        fleet[0].standing.answered(StatusCode::BAD_REQUEST);
        fail(&fleet[0], 1);
        BREAKER.sweep(&fleet, 1, &Log::nowhere());
        assert_eq!(fleet[0].health(), Health::Failing);
        assert!(fleet[0].standing.class() > fleet[1].standing.class());
    }

    #[test]
    fn where_all_fail_nobody_is_put_behind() {
        let fleet = fleet(2);
        fail(&fleet[0], 5);
        fail(&fleet[1], 1);
        BREAKER.sweep(&fleet, 1, &Log::nowhere());
        assert_eq!(fleet[0].standing.class(), 0);
        BREAKER.sweep(&fleet[..1], 1, &Log::nowhere());
        assert_eq!(fleet[0].standing.class(), 0);
    }

    #[test]
    fn one_request_at_a_time_tries_whether_it_is_well() {
        let fleet = fleet(2);
        let standing = &fleet[0].standing;
        fail(&fleet[0], 3);
        BREAKER.sweep(&fleet, 1, &Log::nowhere());
        BREAKER.sweep(&fleet, 8, &Log::nowhere());
        assert_eq!(fleet[0].health(), Health::Failing);
        BREAKER.sweep(&fleet, 9, &Log::nowhere());
        assert_eq!((fleet[0].health(), standing.class()), (Health::HalfOpen, 0));
        standing.chosen(|| 20);
        assert_eq!(fleet[0].health(), Health::Failing);
        BREAKER.sweep(&fleet, 19, &Log::nowhere());
        assert_eq!(fleet[0].health(), Health::Failing);
        BREAKER.sweep(&fleet, 20, &Log::nowhere());
        standing.chosen(|| 40);
        assert!(standing.answered(StatusCode::OK));
        assert_eq!(standing.class(), 0);
    }
}
