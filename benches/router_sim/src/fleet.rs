//! Runs a trace through a policy: workers with a KV cache each, a queue, prefill one request at a time and
//! decode of all together.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use sglang_omni_policy::blocks::event::{CacheEvent, Coverage};
use sglang_omni_policy::{Candidate, Claim, Policy, Receipt, RequestKey, Usage, url_hash};

use crate::kv::KvCache;
use crate::trace::{Request, Shape, TOKEN_BYTES};

#[derive(Clone, Debug)]
pub struct Setup {
    pub workers: usize,
    /// KV cache of all workers together, in bytes of prompt text; each has an equal part.
    pub kv_bytes: usize,
    /// Requests in flight at all times; None lets them arrive when the trace says.
    pub clients: Option<usize>,
    /// Tokens a second that a worker of speed 1 computes of a prompt.
    pub prefill_rate: f64,
    /// Seconds for each token of an answer.
    pub token_seconds: f64,
    /// Speeds of the workers, in turn.
    pub speeds: Vec<f64>,
    pub restart: Option<Restart>,
    /// Workers publish what is in their caches.
    pub events: Option<EventFeed>,
    /// The share of requests that reach a worker past the router.
    pub past: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct EventFeed {
    /// Seconds until the router has an event.
    pub delay: f64,
    /// One in so many workers publishes.
    pub every: usize,
}

/// The first worker is gone, comes back, and has forgotten everything.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// Where in the trace, as shares of its requests, it goes and comes back.
    pub down: (f64, f64),
}

impl Setup {
    pub fn new(workers: usize, shape: &Shape) -> Setup {
        Setup {
            workers,
            kv_bytes: shape.kv_tokens * TOKEN_BYTES,
            clients: Some(16),
            prefill_rate: 20_000.0,
            token_seconds: 0.01,
            speeds: vec![1.0],
            restart: None,
            events: None,
            past: 0.0,
        }
    }
}

#[derive(Clone, Debug)]
pub struct SimOutcome {
    /// Share of all prompt text that was cached where it came.
    pub hit_rate: f64,
    /// Requests of the busiest worker over the mean.
    pub max_over_mean: f64,
    pub requests: Vec<usize>,
    /// Seconds from arrival to the end of prefill, sorted.
    pub first_token: Vec<f64>,
    /// Seconds from the first arrival to the last answer's end.
    pub seconds: f64,
}

impl SimOutcome {
    pub fn mean_first_token(&self) -> f64 {
        self.first_token.iter().sum::<f64>() / self.first_token.len() as f64
    }

    pub fn first_token_at(&self, share: f64) -> f64 {
        let last = self.first_token.len() - 1;
        self.first_token[(share * last as f64) as usize]
    }
}

struct Event {
    at: f64,
    /// Events of one moment happen in the order in which they were planned.
    order: usize,
    what: What,
}

enum What {
    Arrive(usize),
    Prefilled(usize),
    Done(usize),
    Published(usize, Vec<CacheEvent>),
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest event is the greatest, which a heap returns first.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .at
            .total_cmp(&self.at)
            .then(other.order.cmp(&self.order))
    }
}

struct SimWorker {
    /// The policy's view of it; its slot is its index.
    candidate: Candidate,
    kv: KvCache,
    speed: f64,
    waiting: VecDeque<usize>,
    is_prefilling: bool,
    requests: usize,
}

/// A request in flight.
struct Flight<'a> {
    worker: usize,
    arrived: f64,
    prompt: Vec<u8>,
    /// Until prefill has ended.
    claim: Option<Claim<'a>>,
    receipt: Receipt,
    cached: usize,
}

struct Run<'a> {
    setup: &'a Setup,
    trace: &'a [Request],
    policy: &'a dyn Policy,
    workers: Vec<SimWorker>,
    /// Whether the first worker is gone.
    is_first_down: bool,
    candidates: Vec<Candidate>,
    flights: Vec<Option<Flight<'a>>>,
    events: BinaryHeap<Event>,
    planned: usize,
    next: usize,
    cached_bytes: usize,
    prompt_bytes: usize,
    first_token: Vec<f64>,
}

/// Runs the whole trace.
pub fn run(setup: &Setup, trace: &[Request], policy: &dyn Policy) -> SimOutcome {
    let workers: Vec<SimWorker> = (0..setup.workers)
        .map(|index| SimWorker {
            candidate: Candidate {
                slot: index as u32,
                load: 0,
                url_hash: url_hash(&format!("http://w:{}", index + 1)),
            },
            kv: KvCache::new(setup.kv_bytes / setup.workers),
            speed: setup.speeds[index % setup.speeds.len()],
            waiting: VecDeque::new(),
            is_prefilling: false,
            requests: 0,
        })
        .collect();
    let mut run = Run {
        setup,
        trace,
        policy,
        workers,
        is_first_down: false,
        candidates: Vec::with_capacity(setup.workers),
        flights: trace.iter().map(|_| None).collect(),
        events: BinaryHeap::new(),
        planned: 0,
        next: 0,
        cached_bytes: 0,
        prompt_bytes: 0,
        first_token: Vec::with_capacity(trace.len()),
    };
    if let (Some(feed), Some(blocks)) = (setup.events, policy.blocks()) {
        let publishing = (0..setup.workers).step_by(feed.every);
        publishing.for_each(|worker| blocks.cover(worker as u32, Coverage::Whole));
    }
    for _ in 0..setup.clients.unwrap_or(1) {
        run.plan_next(0.0);
    }
    let mut now = 0.0;
    while let Some(Event { at, what, .. }) = run.events.pop() {
        now = at;
        match what {
            What::Arrive(index) => run.arrive(now, index),
            What::Prefilled(index) => run.prefilled(now, index),
            What::Done(index) => run.done(now, index),
            What::Published(worker, events) => run.published(worker, &events),
        }
    }
    run.first_token.sort_unstable_by(f64::total_cmp);
    let requests: Vec<usize> = run.workers.iter().map(|worker| worker.requests).collect();
    SimOutcome {
        hit_rate: run.cached_bytes as f64 / run.prompt_bytes as f64,
        max_over_mean: *requests.iter().max().expect("workers") as f64 * setup.workers as f64
            / trace.len() as f64,
        requests,
        first_token: run.first_token,
        seconds: now,
    }
}

/// A prompt's tokens, whose text is as long for each.
fn tokens_of(prompt: &[u8]) -> Vec<u32> {
    let (tokens, _) = prompt.as_chunks::<TOKEN_BYTES>();
    tokens
        .iter()
        .map(|&token| u32::from_le_bytes(token))
        .collect()
}

impl Run<'_> {
    fn plan(&mut self, at: f64, what: What) {
        self.planned += 1;
        self.events.push(Event {
            at,
            order: self.planned,
            what,
        });
    }

    fn plan_next(&mut self, now: f64) {
        if let Some(request) = self.trace.get(self.next) {
            let at = if self.setup.clients.is_some() {
                now
            } else {
                request.at
            };
            self.plan(at, What::Arrive(self.next));
            self.next += 1;
        }
    }

    fn arrive(&mut self, now: f64, index: usize) {
        self.restart(index);
        let mut prompt = Vec::new();
        self.trace[index].system(&mut prompt);
        self.trace[index].user(&mut prompt);
        let session = self.trace[index].conversation.to_le_bytes();
        let tokens = match self.setup.events {
            Some(_) => tokens_of(&prompt),
            None => Vec::new(),
        };
        let request = RequestKey {
            text: &prompt,
            tokens: &tokens,
            model: b"m",
            session: &session,
            ..RequestKey::default()
        };
        let up = &self.workers[usize::from(self.is_first_down)..];
        self.candidates.clear();
        self.candidates
            .extend(up.iter().map(|worker| worker.candidate));
        // The same ones with every policy.
        let mut random = fastrand::Rng::with_seed(index as u64);
        let (chosen, claim) = match random.f64() < self.setup.past {
            true => (random.usize(..self.candidates.len()), None),
            false => {
                let (chosen, claim) = self.policy.choose(&self.candidates, &request);
                (chosen, Some(claim))
            }
        };
        let worker = self.candidates[chosen].slot as usize;
        self.flights[index] = Some(Flight {
            worker,
            arrived: now,
            prompt,
            claim,
            receipt: Receipt::default(),
            cached: 0,
        });
        self.workers[worker].candidate.load += 1;
        self.workers[worker].requests += 1;
        self.workers[worker].waiting.push_back(index);
        self.prefill(now, worker);
        if self.setup.clients.is_none() {
            self.plan_next(now);
        }
    }

    /// Starts on the next prompt if the worker is free for one.
    fn prefill(&mut self, now: f64, worker: usize) {
        let place = &mut self.workers[worker];
        if place.is_prefilling {
            return;
        }
        let Some(index) = place.waiting.pop_front() else {
            return;
        };
        let flight = self.flights[index].as_mut().expect("in flight");
        let prompt = &flight.prompt;
        place.is_prefilling = true;
        let cached = place.kv.cached(prompt);
        flight.cached = cached;
        let missing = (prompt.len() - cached) / TOKEN_BYTES;
        let seconds = missing as f64 / (self.setup.prefill_rate * place.speed);
        if flight.claim.is_some() {
            self.cached_bytes += cached;
            self.prompt_bytes += prompt.len();
        }
        self.plan(now + seconds, What::Prefilled(index));
    }

    /// The head of the answer leaves with its first token.
    fn prefilled(&mut self, now: f64, index: usize) {
        let flight = self.flights[index].as_mut().expect("in flight");
        let claim = flight.claim.take();
        flight.receipt = claim.map_or_else(Receipt::default, Claim::keep);
        let worker = flight.worker;
        self.first_token.push(now - flight.arrived);
        let place = &mut self.workers[worker];
        place.kv.insert(&flight.prompt);
        if let Some(EventFeed { delay, every }) = self.setup.events
            && worker.is_multiple_of(every)
        {
            let events = place.kv.events(&tokens_of(&flight.prompt));
            self.plan(now + delay, What::Published(worker, events));
        }
        let place = &mut self.workers[worker];
        place.is_prefilling = false;
        let seconds =
            f64::from(self.trace[index].output_tokens) * self.setup.token_seconds / place.speed;
        self.plan(now + seconds, What::Done(index));
        self.prefill(now, worker);
    }

    fn published(&self, worker: usize, events: &[CacheEvent]) {
        let blocks = self.policy.blocks().expect("a policy that uses events");
        for event in events {
            blocks.apply(worker as u32, 0, event);
        }
    }

    fn done(&mut self, now: f64, index: usize) {
        let flight = self.flights[index].take().expect("in flight");
        self.workers[flight.worker].candidate.load -= 1;
        let usage = Usage {
            prompt_tokens: (flight.prompt.len() / TOKEN_BYTES) as u64,
            cached_tokens: (flight.cached / TOKEN_BYTES) as u64,
        };
        if self.policy.reads_usage() {
            self.policy.answered(flight.receipt, usage);
        }
        if self.setup.clients.is_some() {
            self.plan_next(now);
        }
    }

    /// Takes the first worker out or brings it back when the trace is there. It finishes its requests in flight.
    fn restart(&mut self, index: usize) {
        let Some(Restart { down }) = self.setup.restart else {
            return;
        };
        let at = |share: f64| (share * self.trace.len() as f64) as usize;
        if index == at(down.0) {
            self.is_first_down = true;
        } else if index == at(down.1) {
            self.is_first_down = false;
            self.workers[0].kv.clear();
            if self.setup.events.is_some() {
                self.published(0, &[CacheEvent::Cleared]);
            }
            let slots: Vec<u32> = (0..self.setup.workers as u32).collect();
            self.policy.maintain(&slots);
        }
    }
}
