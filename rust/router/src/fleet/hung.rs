//! Decides whether a silent worker hangs.

use std::sync::Arc;

use bytes::Bytes;

use crate::base::clock::{self, Tick};
use crate::base::route::Route;
use crate::fleet::health_flags::Demotion;
use crate::fleet::wait_history::{RequestKind, asks_for_stream};
use crate::fleet::worker::Worker;

/// A worker hangs if it is silent for this many times as long as it and others were lately, at such work.
const TIMES_AS_SILENT: Tick = 3;
/// If it is not known how long they were: if a request waits for this many times as long as others did.
const TIMES_AS_LONG: Tick = 4;
/// The shortest silence counts so many times then.
const TIMES_IF_UNSURE: Tick = 3;
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
        let Some(worker) = worker_of(wait, fleet) else {
            return false;
        };
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
        if silent < self.limit(fleet, worker, kind, others.unwrap_or(0), now) {
            return false;
        }
        if flags.is(Demotion::Hung) {
            return true;
        }
        // If no other worker answers such requests, there is nothing to compare with.
        let is_hung = others.is_some();
        if is_hung && flags.find_hung(now, now.saturating_add(self.recovery)) {
            tracing::warn!(
                worker = worker.url,
                silent_s = %clock::seconds(silent),
                "worker hangs while others answer"
            );
        }
        is_hung
    }

    /// The silence for which a worker is found hung, in ticks, where a request of this kind waits for it. Such requests
    /// have lately waited for up to `longest`.
    fn limit(
        &self,
        fleet: &[Arc<Worker>],
        worker: &Worker,
        kind: RequestKind,
        longest: Tick,
        now: Tick,
    ) -> Tick {
        // A worker that gives whole answers says nothing for as long as they take; streams tell sooner.
        let would_speak = kind.is_streamed() || worker.work.has_streams(now);
        // The first answers of a process take longest.
        let has_answered = worker.flags.last_heard() > 0;
        match learned_silence(fleet, worker, now) {
            Some(silence) if would_speak && has_answered => {
                self.hung.max(silence.saturating_mul(TIMES_AS_SILENT))
            }
            _ => {
                let unsure = self.hung.saturating_mul(TIMES_IF_UNSURE);
                unsure.max(longest.saturating_mul(TIMES_AS_LONG))
            }
        }
    }
}

/// The worker at which a request waits, if it is still in the fleet.
pub fn worker_of<'a>(wait: &PendingHead, fleet: &'a [Arc<Worker>]) -> Option<&'a Worker> {
    let position = fleet.binary_search_by_key(&wait.worker, |worker| worker.id);
    position.ok().map(|position| &*fleet[position])
}

/// How long workers like this one were silent lately while such prompts waited as wait now: a server may say nothing to
/// anyone while it reads one. None if no such prompt was answered with a stream yet, or the size of one is not known.
fn learned_silence(fleet: &[Arc<Worker>], worker: &Worker, now: Tick) -> Option<Tick> {
    let mut longest = 0;
    for prompt in worker.work.largest_prompts(now)? {
        let silences = fleet.iter().filter_map(|other| {
            let (last, _) = other.wait_history.of(prompt);
            (last > 0 && other.is_like(worker)).then(|| other.work.longest_silence(prompt))
        });
        longest = longest.max(silences.max()?);
    }
    Some(longest)
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
        answers(&fleet[0], 1, 2, STREAMED);
        answers(&fleet[1], 30, 2, STREAMED);
        assert!(!is_over(&mut wait, &fleet, 40));
        assert!(is_over(&mut wait, &fleet, 41));
        assert_eq!(fleet[0].health(), Health::Hung);
    }

    #[test]
    fn one_that_has_answered_nothing_yet_may_take_three_times_as_long() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], STREAMED);
        answers(&fleet[1], 30, 2, STREAMED);
        assert!(!is_over(&mut wait, &fleet, 119));
        assert!(is_over(&mut wait, &fleet, 120));
        // So may the process that comes after one that was down.
        answers(&fleet[0], 120, 2, STREAMED);
        fleet[0].flags.demote(Demotion::Down);
        fleet[0].flags.came_back();
        answers(&fleet[1], 150, 2, STREAMED);
        let mut wait = PendingHead {
            since: 130,
            ..waits(&fleet[0], STREAMED)
        };
        assert!(!is_over(&mut wait, &fleet, 130 + 119));
        assert!(is_over(&mut wait, &fleet, 130 + 120));
    }

    #[test]
    fn a_whole_answer_may_take_three_times_as_long_unless_streams_are_silent_too() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], WHOLE);
        for worker in &*fleet {
            answers(worker, 1, 2, WHOLE);
            answers(worker, 1, 2, STREAMED);
        }
        answers(&fleet[1], 30, 2, WHOLE);
        let chat = Route::of("/v1/chat/completions");
        fleet[0].work.prompt_waits(chat, Some(WHOLE.len()), 100);
        assert!(!is_over(&mut wait, &fleet, 100));
        // A client waits for more of a stream, as others did for five ticks at most.
        fleet[1].work.prompt_waits(chat, Some(WHOLE.len()), 30);
        fleet[1].work.was_silent(5, 30);
        fleet[0].work.stream_waits(100);
        assert!(is_over(&mut wait, &fleet, 100));
        fleet[0].flags.restore(Demotion::Hung);
        fleet[1].work.was_silent(34, 30);
        assert!(!is_over(&mut wait, &fleet, 100));
        fleet[1].work.fade();
        assert!(is_over(&mut wait, &fleet, 100));
        fleet[0].flags.restore(Demotion::Hung);
        // The stream has gone on since, or its client is slow.
        assert!(!is_over(&mut wait, &fleet, 102));
        assert!(is_over(&mut wait, &fleet, 121));
    }

    #[test]
    fn a_worker_may_be_silent_while_it_reads_a_long_prompt() {
        let fleet = fleet(2);
        let mut wait = waits(&fleet[0], STREAMED);
        let chat = Route::of("/v1/chat/completions");
        for worker in &*fleet {
            answers(worker, 1, 2, STREAMED);
        }
        let mut is_over_at = |now, long: Option<usize>| {
            answers(&fleet[1], now, 2, STREAMED);
            fleet[0].work.prompt_waits(chat, long, now);
            let is_over = is_over(&mut wait, &fleet, now);
            fleet[0].flags.restore(Demotion::Hung);
            is_over
        };
        assert!(
            !is_over_at(60, Some(40_000)),
            "nobody has read such a one lately"
        );
        let long = RequestKind::new(chat, true, 40_000);
        fleet[1].wait_history.record(long, 60, 30);
        fleet[1].work.prompt_waits(chat, Some(40_000), 60);
        fleet[1].work.was_silent(26, 60);
        assert!(!is_over_at(78, Some(40_000)));
        assert!(is_over_at(79, Some(40_000)));
        let embeddings = Route::of("/v1/embeddings");
        fleet[0].work.prompt_waits(embeddings, Some(40_000), 83);
        assert!(
            !is_over_at(83, Some(10)),
            "nobody has read such a one there"
        );
        assert!(!is_over_at(110, None), "its length is not known");
        assert!(is_over_at(121, None));
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
        let mut wait = waits(&fleet[0], STREAMED);
        answers(&fleet[1], 30, 2, STREAMED);
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
