//! The circuit breaker: it demotes workers that fail request after request while others succeed, and gives demoted
//! workers their trials.

use std::sync::Arc;

use tokio::time::{MissedTickBehavior, interval};

use crate::base::clock::{self, TICK, Tick};
use crate::fleet::health_flags::Demotion;
use crate::fleet::worker::{Fleet, Worker};

/// After this many ticks the remembered long waits are halved.
const FADE_EVERY: u64 = 240;

#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    /// Failures in a row that demote a worker; None demotes none.
    pub threshold: Option<u32>,
    /// How long a demoted worker waits for its trial.
    pub recovery: Tick,
}

impl Breaker {
    /// Checks the fleet, once a tick.
    pub fn sweep(&self, fleet: &[Arc<Worker>], now: Tick) {
        for worker in fleet {
            let flags = &worker.flags;
            flags.expire_busy(now);
            flags.offer_trial(now);
            let fails = self
                .threshold
                .is_some_and(|threshold| flags.streak() >= threshold);
            if fails && !flags.is(Demotion::Failing) && others_do_well(fleet, worker) {
                flags.hold_trial(now.saturating_add(self.recovery));
                flags.demote(Demotion::Failing);
                tracing::warn!(
                    worker = worker.url,
                    failures = %flags.streak(),
                    "worker fails while others do well"
                );
            }
        }
    }
}

/// Advances the clock and has the breaker check the fleet, once a tick, until the runtime ends.
pub async fn watch(fleet: Arc<Fleet>, breaker: Breaker) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u64.. {
        tick.tick().await;
        let fleet = fleet.read();
        breaker.sweep(&fleet, clock::advance());
        if count.is_multiple_of(FADE_EVERY) {
            for worker in fleet.iter() {
                worker.wait_history.fade();
                worker.work.fade();
            }
        }
    }
}

/// Whether another worker that could serve the same requests succeeds. If all fail alike, the requests may be to
/// blame, and no worker is demoted.
fn others_do_well(fleet: &[Arc<Worker>], worker: &Worker) -> bool {
    fleet.iter().any(|other| {
        other.id != worker.id
            && !other.is_draining()
            && other.flags.tier() == 0
            && other.flags.streak() == 0
            && other.is_like(worker)
    })
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;
    use crate::fleet::health_flags::Health;
    use crate::fleet::worker::testing::fleet;

    const BREAKER: Breaker = Breaker {
        threshold: Some(3),
        recovery: 8,
    };

    fn fail(worker: &Worker, times: u32) {
        for _ in 0..times {
            worker.flags.answered(StatusCode::INTERNAL_SERVER_ERROR);
        }
    }

    #[test]
    fn only_failures_in_a_row_demote_a_worker() {
        let fleet = fleet(2);
        fail(&fleet[0], 2);
        fleet[0].flags.answered(StatusCode::OK);
        fail(&fleet[0], 2);
        BREAKER.sweep(&fleet, 1);
        assert_eq!(fleet[0].flags.tier(), 0);
        fleet[0].flags.answered(StatusCode::BAD_REQUEST);
        fail(&fleet[0], 1);
        BREAKER.sweep(&fleet, 1);
        assert_eq!(fleet[0].health(), Health::Failing);
        assert!(fleet[0].flags.tier() > fleet[1].flags.tier());
    }

    #[test]
    fn if_all_fail_no_worker_is_demoted() {
        let fleet = fleet(2);
        fail(&fleet[0], 5);
        fail(&fleet[1], 1);
        BREAKER.sweep(&fleet, 1);
        assert_eq!(fleet[0].flags.tier(), 0);
        BREAKER.sweep(&fleet[..1], 1);
        assert_eq!(fleet[0].flags.tier(), 0);
    }

    #[test]
    fn one_request_at_a_time_tries_whether_it_is_well() {
        let fleet = fleet(2);
        let flags = &fleet[0].flags;
        fail(&fleet[0], 3);
        BREAKER.sweep(&fleet, 1);
        BREAKER.sweep(&fleet, 8);
        assert_eq!(fleet[0].health(), Health::Failing);
        BREAKER.sweep(&fleet, 9);
        assert_eq!((fleet[0].health(), flags.tier()), (Health::HalfOpen, 0));
        flags.chosen(|| 20);
        assert_eq!(fleet[0].health(), Health::Failing);
        BREAKER.sweep(&fleet, 19);
        assert_eq!(fleet[0].health(), Health::Failing);
        BREAKER.sweep(&fleet, 20);
        flags.chosen(|| 40);
        assert!(flags.answered(StatusCode::OK));
        assert_eq!(flags.tier(), 0);
    }
}
