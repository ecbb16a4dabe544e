//! Requests that wait for their answer to begin. Instead of a timer for each, a lane checks its own once a tick and
//! ends a wait if its time is over or its worker hangs.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use hyper::Response;

use crate::base::clock::{self, LaneClock, Tick};
use crate::base::headers::has_media_type;
use crate::base::route::Route;
use crate::fleet::hung::{Patience, PendingHead, worker_of};
use crate::fleet::wait_history::RequestKind;
use crate::fleet::worker::Worker;

/// Why a wait ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// The request's time is over.
    Expired,
    /// The worker hangs; another one might answer.
    Hung,
}

/// How long a request may wait, and why it may be sent elsewhere.
pub struct Asked<'a> {
    pub route: Route,
    /// None if it cannot be sent again: then it waits until its deadline.
    pub body: Option<&'a Bytes>,
    pub deadline: Tick,
}

struct Entry {
    wait: PendingHead,
    deadline: Tick,
    verdict: Option<GaveUp>,
    waker: Waker,
}

/// A lane's waiting requests.
#[derive(Default)]
pub struct PendingHeads {
    entries: RefCell<Vec<Option<Entry>>>,
    free: RefCell<Vec<usize>>,
}

impl PendingHeads {
    /// Waits for the head of an answer, until the deadline, or until the worker hangs and `may_move` says that another
    /// worker could have the request.
    pub async fn head<B, E>(
        &self,
        worker: &Worker,
        asked: &Asked<'_>,
        may_move: impl Fn() -> bool,
        answer: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Result<Response<B>, E>, GaveUp> {
        let since = clock::now();
        let mut answer = pin!(answer);
        let mut registration: Option<Registration<'_>> = None;
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(Ok(answer));
            }
            match &registration {
                None => registration = Some(self.enter(worker, asked, since, cx.waker())),
                Some(registration) => match registration.verdict(cx.waker()) {
                    Some(GaveUp::Hung) if !may_move() => {}
                    Some(verdict) => return Poll::Ready(Err(verdict)),
                    None => {}
                },
            }
            Poll::Pending
        })
        .await?;
        if let Ok(response) = &answer {
            let now = clock::now();
            let is_stream = has_media_type(response.headers(), "text/event-stream");
            match is_stream {
                true => worker.sent_of_stream(Some(since), now),
                false => worker.flags.heard_from(now),
            }
            if let Some(body) = asked.body {
                let kind = RequestKind::new(asked.route, is_stream, body.len());
                // What waited while the worker hung says nothing of how long such requests take.
                let waited = match worker.flags.last_hung() < since {
                    true => now - since,
                    false => 0,
                };
                worker.wait_history.record(kind, now, waited);
            }
        }
        Ok(answer)
    }

    fn enter(
        &self,
        worker: &Worker,
        asked: &Asked<'_>,
        since: Tick,
        waker: &Waker,
    ) -> Registration<'_> {
        let entry = Some(Entry {
            wait: PendingHead {
                worker: worker.id,
                since,
                route: asked.route,
                body: asked.body.cloned(),
                kind: None,
            },
            deadline: asked.deadline,
            verdict: None,
            waker: waker.clone(),
        });
        let mut entries = self.entries.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or(entries.len());
        match entries.get_mut(index) {
            Some(slot) => *slot = entry,
            None => entries.push(entry),
        }
        Registration {
            pending: self,
            index,
        }
    }

    /// Checks all waiting requests, once a tick.
    pub fn sweep(&self, fleet: &[Arc<Worker>], patience: &Patience, look: LaneClock) {
        for entry in self.entries.borrow_mut().iter_mut().flatten() {
            let wait = &mut entry.wait;
            wait.since = look.excusing(wait.since);
            // What waits for less than a tick hardly explains a silence of many.
            if wait.since < look.now
                && let Some(worker) = worker_of(wait, fleet)
            {
                let len = wait.body.as_ref().map(Bytes::len);
                worker.work.prompt_waits(wait.route, len, look.now);
            }
            let verdict = if look.now >= entry.deadline {
                Some(GaveUp::Expired)
            } else if patience.is_over(&mut entry.wait, fleet, look.now) {
                Some(GaveUp::Hung)
            } else {
                None
            };
            if verdict.is_some() {
                entry.verdict = verdict;
                entry.waker.wake_by_ref();
            }
        }
    }
}

/// Keeps a request's entry for as long as it waits.
struct Registration<'a> {
    pending: &'a PendingHeads,
    index: usize,
}

impl Registration<'_> {
    fn verdict(&self, waker: &Waker) -> Option<GaveUp> {
        let mut entries = self.pending.entries.borrow_mut();
        let entry = entries[self.index].as_mut()?;
        entry.waker.clone_from(waker);
        entry.verdict.take()
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.pending.entries.borrow_mut()[self.index] = None;
        self.pending.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::task::Context;

    use super::*;
    use crate::fleet::worker::testing::fleet;

    #[test]
    fn a_request_whose_time_is_over_is_told_so_and_leaves_nothing_behind() {
        let fleet = fleet(1);
        let heads = PendingHeads::default();
        let patience = Patience {
            hung: Tick::MAX,
            recovery: 8,
        };
        let mut context = Context::from_waker(Waker::noop());
        let asked = Asked {
            route: Route::of("/"),
            body: None,
            deadline: 8,
        };
        for _ in 0..3 {
            let never = pending::<Result<Response<()>, ()>>();
            let mut wait = pin!(heads.head(&fleet[0], &asked, || true, never));
            assert!(wait.as_mut().poll(&mut context).is_pending());
            let look = LaneClock::default().next(7);
            heads.sweep(&fleet, &patience, look);
            assert!(wait.as_mut().poll(&mut context).is_pending());
            heads.sweep(&fleet, &patience, look.next(8));
            let Poll::Ready(Err(gave_up)) = wait.as_mut().poll(&mut context) else {
                panic!("it still waits");
            };
            assert_eq!(gave_up, GaveUp::Expired);
        }
        assert!(matches!(heads.entries.borrow()[..], [None]));
    }

    #[test]
    fn a_worker_does_not_hang_while_the_lane_does_not_run() {
        let fleet = fleet(2);
        let heads = PendingHeads::default();
        let patience = Patience {
            hung: 40,
            recovery: 8,
        };
        let body = Bytes::from_static(b"{}");
        let asked = Asked {
            route: Route::of("/"),
            body: Some(&body),
            deadline: Tick::MAX,
        };
        let never = pending::<Result<Response<()>, ()>>();
        let mut wait = pin!(heads.head(&fleet[0], &asked, || true, never));
        let mut context = Context::from_waker(Waker::noop());
        let mut look = LaneClock::default();
        let start = clock::now();
        let mut gave_up_after = |ticks| {
            let now = start + ticks;
            look = look.next(now);
            let kind = RequestKind::new(asked.route, false, body.len());
            fleet[1].wait_history.record(kind, now, 1);
            heads.sweep(&fleet, &patience, look);
            wait.as_mut().poll(&mut context).is_ready()
        };
        assert!(!gave_up_after(0));
        assert!(!gave_up_after(1000));
        assert!((1001..1119).all(|ticks| !gave_up_after(ticks)));
        assert!(gave_up_after(1119));
    }
}
