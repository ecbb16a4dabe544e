//! Decides whether a silent worker hangs.

use std::sync::Arc;

use bytes::Bytes;

use crate::base::clock::{self, Tick};
use crate::base::route::Route;
use crate::fleet::health_flags::Demotion;
use crate::fleet::wait_history::{RequestKind, asks_for_stream};
use crate::fleet::worker::Worker;

/// A worker hangs if it takes this many times as long as the others.
const TIMES_AS_LONG: Tick = 4;
/// Other workers' answers count for this many ticks.
const LATELY: Tick = 240;

/// A request that waits for its answer to begin.
pub struct PendingHead {
    pub worker: u32,
    pub since: Tick,
    pub route: Route,
    /// None if it cannot be sent again.
    pub body: Option<Bytes>,
    /// Determined only once the wait is long.
    pub kind: Option<RequestKind>,
}

/// How long a worker may be silent, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The shortest silence for which a worker is found hung.
    pub hung: Tick,
    /// How long a hung worker waits for its trial.
    pub recovery: Tick,
}

impl Patience {
    /// Whether a request should go elsewhere because its worker is silent. This is also where a worker is found hung.
    pub fn is_over(&self, wait: &mut PendingHead, fleet: &[Arc<Worker>], now: Tick) -> bool {
        let Some(body) = &wait.body else {
            return false;
        };
        let Ok(position) = fleet.binary_search_by_key(&wait.worker, |worker| worker.id) else {
            return false;
        };
        let worker = &fleet[position];
        let flags = &worker.flags;
        let silent = now.saturating_sub(wait.since.max(flags.last_heard()));
        if silent < self.hung {
            return false;
        }
        if flags.is(Demotion::Down) {
            return true;
        }
        let kind = *wait
            .kind
            .get_or_insert_with(|| RequestKind::new(wait.route, asks_for_stream(body), body.len()));
        let others = longest_elsewhere(fleet, worker, kind, wait.since);
        if silent < others.unwrap_or(0).saturating_mul(TIMES_AS_LONG) {
            return false;
        }
        if flags.is(Demotion::Hung) {
            return true;
        }
        // If no other worker answers such requests, there is nothing to compare with.
        let is_hung = others.is_some();
        if is_hung {
            flags.hold_trial(now.saturating_add(self.recovery));
            if flags.demote(Demotion::Hung) {
                tracing::warn!(
                    worker = worker.url,
                    silent_s = %clock::seconds(silent),
                    "worker hangs while others answer"
                );
            }
        }
        is_hung
    }
}

/// The longest recent wait of such a request for its answer to begin, or None if no other worker is known to answer
/// such requests.
fn longest_elsewhere(
    fleet: &[Arc<Worker>],
    worker: &Worker,
    kind: RequestKind,
    since: Tick,
) -> Option<Tick> {
    let mut longest = worker.wait_history.of(kind).1;
    let mut others_answer = false;
    for other in fleet.iter().filter(|other| other.id != worker.id) {
        let (last, wait) = other.wait_history.of(kind);
        // A worker that had nothing to answer in the meantime is not silent.
        let is_silent = other.load() > 0 && other.flags.last_heard() < since;
        let answers = last > since.saturating_sub(LATELY) && !is_silent;
        // Comparing their models takes longest, and most workers would change nothing: a large fleet may have as many
        // waiting requests as workers, each of which looks at all workers in each tick.
        if (wait > longest || (answers && !others_answer)) && other.is_like(worker) {
            longest = longest.max(wait);
            others_answer |= answers;
        }
    }
    others_answer.then_some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::health_flags::Health;
    use crate::fleet::worker::LoadGuard;
    use crate::fleet::worker::testing::fleet;

    const PATIENCE: Patience = Patience {
        hung: 40,
        recovery: 8,
    };
    const STREAMED: &[u8] = b"{\"stream\": true}";
    const WHOLE: &[u8] = b"{}";

    fn is_over(wait: &mut PendingHead, fleet: &[Arc<Worker>], now: Tick) -> bool {
        PATIENCE.is_over(wait, fleet, now)
    }

    /// A request that waits at a worker from tick 0 on.
    fn waits(worker: &Worker, body: &'static [u8]) -> PendingHead {
        PendingHead {
            worker: worker.id,
            since: 0,
            route: Route::of("/v1/chat/completions"),
            body: Some(Bytes::from_static(body)),
            kind: None,
        }
    }

    fn answers(worker: &Worker, now: Tick, waited: Tick, body: &[u8]) {
        let kind = RequestKind::new(
            Route::of("/v1/chat/completions"),
            asks_for_stream(body),
            body.len(),
        );
        worker.flags.heard_from(now);
        worker.wait_history.record(kind, now, waited);
    }

    #[test]
    fn a_worker_that_is_silent_while_others_answer_is_hung() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], STREAMED);
        answers(&fleet[1], 30, 2, STREAMED);
        assert!(!is_over(&mut wait, &fleet, 39));
        assert!(is_over(&mut wait, &fleet, 40));
        assert_eq!(fleet[0].health(), Health::Hung);
    }

    #[test]
    fn it_is_not_if_no_other_answers_such_requests() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], STREAMED);
        assert!(!is_over(&mut wait, &fleet, 500));
        answers(&fleet[1], 30, 2, WHOLE);
        assert!(!is_over(&mut wait, &fleet, 500));
        assert_eq!(fleet[0].health(), Health::Unknown);
    }

    #[test]
    fn it_is_not_if_the_others_have_become_as_silent() {
        let fleet = fleet(2);
        answers(&fleet[1], 970, 2, STREAMED);
        let mut wait = PendingHead {
            since: 1000,
            ..waits(&fleet[0], STREAMED)
        };
        let load = LoadGuard::new(fleet[1].clone());
        assert!(!is_over(&mut wait, &fleet, 1500));
        // The answers of a worker that had nothing to do still count.
        drop(load);
        assert!(is_over(&mut wait, &fleet, 1500));
        fleet[0].flags.restore(Demotion::Hung);
        let mut later = PendingHead {
            since: 1211,
            ..waits(&fleet[0], STREAMED)
        };
        assert!(!is_over(&mut later, &fleet, 1500));
    }

    #[test]
    fn it_may_take_four_times_as_long_as_others() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], STREAMED);
        answers(&fleet[1], 30, 100, STREAMED);
        assert!(!is_over(&mut wait, &fleet, 399));
        assert_eq!(fleet[0].health(), Health::Unknown);
        assert!(is_over(&mut wait, &fleet, 400));
    }

    #[test]
    fn a_worker_that_sends_anything_does_not_hang() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], WHOLE);
        answers(&fleet[1], 30, 2, WHOLE);
        fleet[0].flags.heard_from(60);
        assert!(!is_over(&mut wait, &fleet, 99));
        assert!(is_over(&mut wait, &fleet, 100));
    }

    #[test]
    fn requests_of_a_silent_worker_that_is_down_go_elsewhere() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], WHOLE);
        let mut stuck = PendingHead {
            body: None,
            ..waits(&fleet[0], WHOLE)
        };
        fleet[0].flags.demote(Demotion::Down);
        assert!(!is_over(&mut wait, &fleet, 39));
        assert!(is_over(&mut wait, &fleet, 40));
        assert!(!is_over(&mut stuck, &fleet, 500));
        // A worker that was taken out of the fleet finishes what it has.
        assert!(!is_over(&mut wait, &fleet[1..], 500));
    }
}
