//! A lane is one thread's own part of the router; what all of them share is [`Shared`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sglang_omni_policy::{Candidate, Policy};
use tokio::sync::watch;

use crate::app::config::Config;
use crate::base::log::Log;
use crate::base::metrics::{LaneMetrics, Metrics};
use crate::base::request_id::RequestIds;
use crate::base::stopping::Stopping;
use crate::fleet::models::Models;
use crate::fleet::waiting::Waiting;
use crate::fleet::worker::Fleet;
use crate::front::clients::Clients;
use crate::front::gate::Gate;
use crate::front::tls::Tls;
use crate::proxy::retry::Budget;
use crate::upstream::pool::Pool;
use crate::upstream::trust::Trust;

/// What all threads share.
pub struct Shared {
    pub config: Config,
    /// This router among all.
    pub name: String,
    pub fleet: Arc<Fleet>,
    pub models: Arc<Models>,
    pub policy: Arc<dyn Policy>,
    pub gate: Gate,
    /// What client connections are secured with, if they are.
    pub tls: Option<Tls>,
    /// What connections to https workers are secured with.
    pub trust: Arc<Trust>,
    pub metrics: Arc<Metrics>,
    pub log: Arc<Log>,
    pub stopping: watch::Receiver<Stopping>,
    /// Changes when what is listed elsewhere is to be read again.
    pub reload: watch::Receiver<()>,
}

/// One thread's own part of the router.
pub struct Lane {
    pub shared: Arc<Shared>,
    /// Its number among the lanes.
    index: usize,
    pub pool: Rc<Pool>,
    pub scratch: RefCell<Scratch>,
    pub retries: Budget,
    pub request_ids: RefCell<RequestIds>,
    pub waiting: Waiting,
    pub clients: Rc<Clients>,
    /// Bytes of request bodies that are held, and how many may be.
    pub held: Cell<usize>,
    pub held_limit: usize,
    /// Client connections and upgraded streams that are open.
    pub open: Cell<usize>,
}

/// Memory reused from request to request.
#[derive(Default)]
pub struct Scratch {
    pub key: Vec<u8>,
    /// The workers that may take a request: positions in the fleet, and what the policy is told of each.
    pub eligible: Vec<usize>,
    pub candidates: Vec<Candidate>,
}

impl Lane {
    pub fn new(shared: Arc<Shared>, index: usize) -> Rc<Lane> {
        Rc::new(Lane {
            pool: Pool::new(shared.trust.clone()),
            held: Cell::new(0),
            held_limit: shared.config.max_held_bytes / shared.metrics.lanes(),
            shared,
            index,
            scratch: RefCell::default(),
            retries: Budget::default(),
            request_ids: RefCell::default(),
            waiting: Waiting::default(),
            clients: Rc::default(),
            open: Cell::new(0),
        })
    }

    /// What this lane counts.
    pub fn metrics(&self) -> &LaneMetrics {
        self.shared.metrics.lane(self.index)
    }
}

/// Counts something as open on its lane for as long as it lives.
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
