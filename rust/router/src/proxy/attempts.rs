//! One request's attempts: draws the consequences of each outcome and decides whether another worker may be asked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use sglang_omni_policy::{Claim, Receipt};

use crate::base::clock::{self, Tick};
use crate::base::headers::has_media_type;
use crate::fleet::health::mark_down;
use crate::fleet::health_flags::Demotion;
use crate::fleet::worker::Worker;
use crate::proxy::choice::{LastFailure, Needs, choose, no_worker};
use crate::proxy::lane::Lane;
use crate::proxy::reply::{self, Reason, Reply};

/// The longest time for which a worker's `Retry-After` demotes it.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);

/// How many connections may end with a request on them before it is given up. The first most likely ended for another
/// reason; after the second, the request itself may be what kills workers, and no other worker gets it.
const MOST_LOST: u32 = 2;

/// One request's attempts.
pub struct Attempts<'a> {
    lane: &'a Lane,
    tried: Vec<u32>,
    needs: Needs,
    /// Attempts that may follow one that reached a worker.
    left: u32,
    failure: LastFailure,
    /// Whether any failed attempt reached a worker.
    was_sent: bool,
    was_moved: bool,
    is_over: bool,
    /// Whether the client is told where workers are.
    sees_urls: bool,
    /// Workers whose connections ended with the request on them, before an answer.
    lost: u32,
    /// The policy's claim that the prompt goes to the chosen worker.
    claim: Option<Claim<'a>>,
    /// Whether the worker was already down when it was chosen.
    was_down: bool,
    /// When the client is told that the answer took too long.
    pub deadline: Tick,
}

impl<'a> Attempts<'a> {
    pub fn new(lane: &'a Lane, sees_urls: bool) -> Self {
        lane.retries.deposit();
        Attempts {
            lane,
            tried: Vec::new(),
            needs: Needs::default(),
            left: lane.proxy.settings.retries,
            failure: LastFailure::default(),
            sees_urls,
            was_sent: false,
            was_moved: false,
            is_over: false,
            lost: 0,
            claim: None,
            was_down: false,
            deadline: clock::now()
                .saturating_add(clock::ticks(lane.proxy.settings.request_timeout)),
        }
    }

    /// The next worker to ask, if one is left.
    pub fn choose(&mut self, parts: &Parts, body: &[u8]) -> Option<Arc<Worker>> {
        if self.is_over {
            return None;
        }
        // The last attempt failed.
        self.claim = None;
        let (worker, claim) = choose(self.lane, parts, body, &self.tried, &mut self.needs)?;
        self.claim = Some(claim);
        if !self.tried.is_empty() {
            self.lane.proxy.metrics.retries.fetch_add(1, Relaxed);
        }
        self.was_down = worker.flags.is(Demotion::Down);
        worker.flags.chosen(|| next_trial(self.lane, &worker));
        Some(worker)
    }

    /// Takes note of an answer. Returns whether another worker should be asked instead of passing the answer on, which
    /// requires that the request `is_whole`.
    pub fn on_response<B>(
        &mut self,
        worker: &Worker,
        response: &Response<B>,
        is_whole: bool,
    ) -> bool {
        let status = response.status();
        // 503 is about the worker. 429 is about the client, and says nothing to others.
        let busy = match status {
            StatusCode::SERVICE_UNAVAILABLE => retry_after(response.headers()),
            _ => None,
        };
        // A worker that asks for time has not failed.
        let counts_as = match busy {
            Some(_) => StatusCode::TOO_MANY_REQUESTS,
            None => status,
        };
        if worker.flags.answered(counts_as) {
            tracing::info!(worker = worker.url, "worker answers again");
        }
        if let Some(time) = busy {
            let until = clock::now().saturating_add(clock::ticks(time));
            if worker.flags.set_busy(until) {
                tracing::info!(
                    worker = worker.url,
                    status = status.as_str(),
                    retry_after_s = %time.as_secs(),
                    "worker is busy"
                );
            }
        }
        worker.requests.fetch_add(1, Relaxed);
        if !matches!(
            status,
            StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::TOO_MANY_REQUESTS
        ) {
            return false;
        }
        worker.failures.fetch_add(1, Relaxed);
        self.tried.push(worker.id);
        is_whole && self.has_better(worker) && self.may_retry()
    }

    /// Called if the client gets this answer: the policy learns the prompt if the answer is a success. Returns the
    /// receipt if the answer may say how much the worker had cached.
    pub fn settle<B>(&mut self, response: &Response<B>) -> Option<Receipt> {
        let claim = self.claim.take()?;
        if !response.status().is_success() {
            return None;
        }
        let receipt = claim.keep();
        // Only JSON, and events that are JSON, say what they used.
        let says_usage = |media_type: &&str| has_media_type(response.headers(), media_type);
        let kinds = ["application/json", "text/event-stream"];
        kinds.iter().any(says_usage).then_some(receipt)
    }

    /// No connection could be made. Nothing was sent, so trying another worker is free.
    pub fn on_connect_error(&mut self, worker: &Worker, error: &io::Error) {
        self.failed(worker, &error.to_string());
        // Then all workers that are left are down, and waiting for one after another would add up.
        self.is_over = self.was_down && error.kind() == io::ErrorKind::TimedOut;
        mark_down(worker, &error.to_string());
    }

    /// The connection ended before an answer. Returns whether another worker may be asked.
    pub fn on_reset(&mut self, worker: &Worker, error: &str) -> bool {
        self.failed(worker, error);
        worker.flags.fail();
        self.was_sent = true;
        self.lost += 1;
        self.lost < MOST_LOST && self.may_retry()
    }

    /// Whether a request may be sent to the same worker again after the kept connection that carried it ended. The
    /// worker may have read it, so this is a retry, unless the request changes nothing.
    pub fn may_resend(&mut self, is_safe: bool) -> bool {
        is_safe || (self.lost + 1 < MOST_LOST && self.may_retry())
    }

    /// The request is sent to the same worker again after its connection ended. A worker that is killed may end two
    /// connections, the kept one and then one that waited to be accepted; `lost` counts them once.
    pub fn resent(&self) {
        self.lane.proxy.metrics.retries.fetch_add(1, Relaxed);
    }

    /// Whether a request may be moved from a silent worker to another one. A request is moved once, unless health
    /// checks say that the worker is down: a request that merely takes long takes as long elsewhere.
    pub fn may_move(&self, worker: &Worker) -> bool {
        self.left > 0
            && (!self.was_moved || worker.flags.is(Demotion::Down))
            && self.lane.retries.has_one()
            && self.has_better(worker)
    }

    /// The request is taken from a silent worker; `may_move` has allowed it.
    pub fn on_hung(&mut self, worker: &Worker) {
        self.failed(worker, "it hangs");
        self.was_sent = true;
        self.was_moved = true;
        self.may_retry();
    }

    /// The request's time is over. Returns the answer that says so.
    pub fn on_timeout(&mut self, worker: &Worker) -> Reply {
        self.failed(worker, "no answer in time");
        worker.flags.fail();
        let limit = self.lane.proxy.settings.request_timeout.as_secs_f64();
        let message = format!(
            "worker {} has not begun to answer in {limit} s (request_timeout)",
            worker.name(self.sees_urls)
        );
        reply::error(Reason::WorkerTimeout, &message)
    }

    /// The answer to a client whose body was lost in part with a connection.
    pub fn cannot_resend(&self) -> Reply {
        self.failure.reply(Reason::WorkerFailed, |last| {
            format!("part of the body was sent, and it cannot be sent again: {last}")
        })
    }

    fn failed(&mut self, worker: &Worker, error: &str) {
        worker.failures.fetch_add(1, Relaxed);
        self.failure = LastFailure::of(worker, error, self.sees_urls);
        self.tried.push(worker.id);
    }

    fn may_retry(&mut self) -> bool {
        let metrics = &self.lane.proxy.metrics;
        if self.left == 0 {
            return false;
        }
        if !self.lane.retries.withdraw() {
            metrics.retries_refused.fetch_add(1, Relaxed);
            return false;
        }
        self.left -= 1;
        true
    }

    /// Whether a worker of the best tier was not asked yet.
    fn has_better(&self, worker: &Worker) -> bool {
        let fleet = self.lane.proxy.fleet.read();
        let serving = self.needs.serving(&fleet);
        fleet.iter().any(|other| {
            other.id != worker.id
                && serving.includes(other)
                && !other.is_draining()
                && other.flags.tier() == 0
                && !self.tried.contains(&other.id)
        })
    }

    /// The answer to the client if no worker answered.
    pub fn give_up(&self) -> Reply {
        if self.was_sent {
            self.lane.proxy.metrics.unserved.fetch_add(1, Relaxed);
            if self.lost < MOST_LOST {
                return self.failure.reply(Reason::WorkerFailed, |last| {
                    format!("no answer from a worker; the last one was {last}")
                });
            }
            let lost = self.lost;
            return self.failure.reply(Reason::WorkersLost, |last| {
                format!(
                    "the connections to {lost} workers ended with this request on them; the last one was {last}. It is \
                     sent to no more of them: look at their logs before it is sent again"
                )
            });
        }
        no_worker(self.lane, &self.failure, self.sees_urls)
    }
}

/// When a worker that just got its trial may get another, if this one fails.
fn next_trial(lane: &Lane, worker: &Worker) -> Tick {
    let settings = &lane.proxy.settings;
    let patience = match worker.flags.is(Demotion::Hung) {
        true => settings.hung_timeout,
        false => Duration::ZERO,
    };
    clock::now().saturating_add(clock::ticks(settings.recovery + patience))
}

/// The time in `Retry-After`; a date counts as one second.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = value.parse().unwrap_or(1);
    Some(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_bounded() {
        let after = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers).map(|time| time.as_secs())
        };
        assert_eq!(after("7"), Some(7));
        assert_eq!(after("86400"), Some(30));
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(1));
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
