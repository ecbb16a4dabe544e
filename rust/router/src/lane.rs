use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Config;
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::retry::Budget;
use crate::upstream::Pool;
use crate::worker::{Fleet, Worker};

/// What all threads share.
pub struct Shared {
    pub config: Config,
    pub fleet: Fleet,
    pub policy: Box<dyn Policy>,
    pub metrics: Metrics,
    pub stopping: watch::Receiver<Stopping>,
}

impl Shared {
    /// Takes a worker out of the fleet; requests it is serving go on to their end.
    pub fn remove(&self, worker: &Worker) {
        if self.fleet.remove(&worker.url).is_some() {
            worker.set_draining(true);
            self.policy.maintain(&self.fleet.read());
        }
    }
}

/// How far the router has been asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stopping {
    No,
    /// Take no more connections, finish what is in flight.
    Drain,
    Now,
}

/// One thread's own part of the router.
pub struct Lane {
    pub shared: Arc<Shared>,
    pub pool: Rc<Pool>,
    pub scratch: RefCell<Scratch>,
    pub retries: Budget,
    /// Client connections and upgraded streams that are open.
    pub open: Cell<usize>,
}

/// Memory reused from request to request.
#[derive(Default)]
pub struct Scratch {
    pub key: Vec<u8>,
    pub eligible: Vec<usize>,
}

impl Lane {
    pub fn new(shared: Arc<Shared>) -> Rc<Lane> {
        Rc::new(Lane {
            shared,
            pool: Rc::default(),
            scratch: RefCell::default(),
            retries: Budget::default(),
            open: Cell::new(0),
        })
    }
}

/// Counts something as open on its lane for as long as it lives.
pub struct Open(Rc<Lane>);

impl Open {
    pub fn new(lane: Rc<Lane>) -> Self {
        lane.open.set(lane.open.get() + 1);
        Open(lane)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}
