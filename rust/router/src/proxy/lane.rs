//! A lane: one thread's part of the router, with its own connections to workers, retry budget and waiting requests.
//! [`Proxy`] holds what all lanes share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sglang_omni_policy::Policy;
use tracing_appender::non_blocking::ErrorCounter;

use crate::base::clock::{self, LaneClock, Tick};
use crate::base::metrics::{LaneMetrics, Metrics};
use crate::base::tracing_context::Tracer;
use crate::fleet::health_flags::Demotion;
use crate::fleet::hung::Patience;
use crate::fleet::models::Models;
use crate::fleet::pending_heads::PendingHeads;
use crate::fleet::sessions::Sessions;
use crate::fleet::worker::{Fleet, Worker};
use crate::proxy::eligible::Eligible;
use crate::proxy::in_flight::InFlight;
use crate::proxy::retry_budget::RetryBudget;
use crate::upstream::pool::Pool;
use crate::upstream::trust::Trust;

/// The settings for requests on their way to workers and back.
pub struct ProxySettings {
    /// Larger request bodies are refused.
    pub max_body_bytes: u64,
    /// Bytes of request bodies that all lanes together may hold.
    pub max_held_bytes: usize,
    /// How long a client may send less than 1 KiB a second of a body.
    pub stall_timeout: Duration,
    /// How long an answer or an upgraded connection may be silent; zero does not limit it.
    pub stream_idle_timeout: Duration,
    /// How long an idle connection to a worker is kept at most.
    pub worker_keep_alive_timeout: Duration,
    /// How long a request may wait for its answer to begin.
    pub request_timeout: Duration,
    /// How often a request that a worker may have seen goes to another one.
    pub retries: u32,
    /// How long a failing or hung worker waits for its next trial.
    pub recovery: Duration,
    /// The silence after which a worker may be found hung.
    pub hung_timeout: Duration,
    /// Whether every request is logged when it ends.
    pub access_log: bool,
}

/// The part of the router that forwards requests, as all lanes share it.
pub struct Proxy {
    pub settings: ProxySettings,
    pub fleet: Arc<Fleet>,
    pub models: Arc<Models>,
    pub policy: Arc<dyn Policy>,
    pub sessions: Sessions,
    /// TLS to https workers.
    pub trust: Arc<Trust>,
    pub in_flight: InFlight,
    pub metrics: Arc<Metrics>,
    /// None unless spans are sent to a collector.
    pub tracer: Option<Tracer>,
    /// Counts log lines that were dropped.
    pub log_losses: ErrorCounter,
}

/// How many of a lane's clients wait for more of a stream, or of another body, by the slots of the workers that answer.
#[derive(Default)]
pub struct Awaited(RefCell<Vec<u32>>);

impl Awaited {
    pub fn begin(&self, worker: &Worker) {
        let (slot, mut counts) = (worker.slot() as usize, self.0.borrow_mut());
        if counts.len() <= slot {
            counts.resize(slot + 1, 0);
        }
        counts[slot] += 1;
    }

    pub fn end(&self, worker: &Worker) {
        self.0.borrow_mut()[worker.slot() as usize] -= 1;
    }

    /// Notes in the work of each worker whether any waits.
    fn note(&self, fleet: &[Arc<Worker>], now: Tick) {
        let counts = self.0.borrow();
        for worker in fleet {
            if counts
                .get(worker.slot() as usize)
                .is_some_and(|&count| count > 0)
            {
                worker.work.stream_waits(now);
            }
        }
    }
}

/// One thread's part of the router.
pub struct Lane {
    pub proxy: Arc<Proxy>,
    /// Its number among the lanes.
    index: usize,
    pub pool: Rc<Pool>,
    pub scratch: RefCell<Scratch>,
    pub retries: RetryBudget,
    pub pending_heads: PendingHeads,
    pub awaited: Awaited,
    patience: Patience,
    /// Bytes of request bodies that are held, and the limit.
    pub held: Cell<usize>,
    pub held_limit: usize,
    /// Idle connections to workers are closed after so many ticks.
    longest_idle: Tick,
    /// Client connections and upgraded streams that are open.
    pub open: Cell<usize>,
}

/// Memory reused from request to request.
#[derive(Default)]
pub struct Scratch {
    pub key: Vec<u8>,
    /// A prompt's tokens.
    pub tokens: Vec<u32>,
    /// The workers that may take a request.
    pub eligible: Eligible,
}

impl Lane {
    pub fn new(proxy: Arc<Proxy>, index: usize) -> Rc<Lane> {
        Rc::new(Lane {
            pool: Pool::new(proxy.trust.clone()),
            scratch: RefCell::default(),
            retries: RetryBudget::default(),
            pending_heads: PendingHeads::default(),
            awaited: Awaited::default(),
            patience: Patience {
                hung: clock::ticks(proxy.settings.hung_timeout),
                recovery: clock::ticks(proxy.settings.recovery),
            },
            held: Cell::new(0),
            held_limit: proxy.settings.max_held_bytes / proxy.metrics.lanes(),
            longest_idle: clock::ticks(proxy.settings.worker_keep_alive_timeout),
            open: Cell::new(0),
            index,
            proxy,
        })
    }

    /// This lane's counters.
    pub fn metrics(&self) -> &LaneMetrics {
        self.proxy.metrics.lane(self.index)
    }

    /// Checks the waiting requests, once a tick.
    pub fn look_over(&self, look: LaneClock) {
        self.retries.refill();
        let fleet = self.proxy.fleet.read();
        self.awaited.note(&fleet, look.now);
        self.pending_heads.sweep(&fleet, &self.patience, look);
        self.pool.share_unused();
        // Each worker's idle connections are one lane's to check.
        let lanes = self.proxy.metrics.lanes();
        for worker in fleet.iter().skip(self.index).step_by(lanes) {
            // A worker that is down may come back as another process, or at another address.
            match worker.flags.is(Demotion::Down) {
                true => worker.endpoint.idle.close_all(),
                false => worker.endpoint.idle.sweep(look.now, self.longest_idle),
            }
        }
    }
}

/// Counts a connection or stream as open on its lane for as long as it lives.
pub struct Open(Rc<Lane>);

impl Open {
    pub fn new(lane: Rc<Lane>) -> Self {
        lane.open.set(lane.open.get() + 1);
        lane.metrics().connections.fetch_add(1, Relaxed);
        Open(lane)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.metrics().connections.fetch_sub(1, Relaxed);
    }
}
