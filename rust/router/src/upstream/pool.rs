//! Idle connections to workers, kept for further requests. Each lane has its own pool.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::base::clock;
use crate::upstream::connection::{Begun, Upstream};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::trust::Trust;

/// How often idle connections are checked. A connection that is still idle at the second check is closed.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

/// Idle connections by worker, the most recently used one last.
pub struct Pool {
    #[allow(clippy::vec_box)] // They come boxed and leave boxed.
    idle: RefCell<HashMap<u32, Vec<Box<Upstream>>>>,
    sweeps: Cell<u32>,
    trust: Arc<Trust>,
}

/// The rest of an answer that is read to keep its connection: bytes, and time.
const REST: usize = 64 << 10;
const REST_TIME: Duration = Duration::from_secs(1);

impl Pool {
    pub fn new(trust: Arc<Trust>) -> Rc<Pool> {
        Rc::new(Pool {
            idle: RefCell::default(),
            sweeps: Cell::new(0),
            trust,
        })
    }

    /// An idle connection to a worker, or a new one, which may take `limit` to open.
    pub async fn get(&self, endpoint: &Endpoint, limit: Duration) -> io::Result<Box<Upstream>> {
        while let Some(mut upstream) = self.pop(endpoint.id) {
            if upstream.is_alive() {
                return Ok(upstream);
            }
        }
        self.open(endpoint, limit).await
    }

    /// A connection that nothing was sent on yet.
    pub async fn open(&self, endpoint: &Endpoint, limit: Duration) -> io::Result<Box<Upstream>> {
        Upstream::open(endpoint, &self.trust, limit).await
    }

    fn pop(&self, worker: u32) -> Option<Box<Upstream>> {
        self.idle.borrow_mut().get_mut(&worker)?.pop()
    }

    /// Keeps a connection whose answer was read to its end, or closes it if it cannot be used again.
    pub fn put_back(&self, mut upstream: Box<Upstream>) {
        if upstream.is_ready() {
            upstream.reused = true;
            upstream.idle_since = clock::now();
            upstream.idle_since_sweep = self.sweeps.get();
            self.idle
                .borrow_mut()
                .entry(upstream.worker)
                .or_default()
                .push(upstream);
        }
    }

    /// Reads the rest of an answer that no client gets, if it is short and comes at once, and keeps its connection: a fleet
    /// that refuses much would pay a new one for each refusal.
    pub fn finish(self: &Rc<Self>, answer: Begun, mut upstream: Box<Upstream>) {
        let (pool, mut incoming) = (self.clone(), answer.incoming);
        spawn_local(timeout(REST_TIME, async move {
            let mut read = 0;
            while let Some(frame) = poll_fn(|cx| upstream.poll_frame(&mut incoming, cx)).await {
                match frame {
                    Ok(frame) if read <= REST => {
                        read += frame.data_ref().map_or(0, |data| data.len());
                    }
                    _ => return,
                }
            }
            pool.put_back(upstream);
        }));
    }

    /// Closes connections that workers have closed, that stayed unused between two sweeps, or whose workers are gone.
    pub fn sweep(&self, is_known: impl Fn(u32) -> bool) {
        let last = self.sweeps.get();
        self.sweeps.set(last.wrapping_add(1));
        self.idle.borrow_mut().retain(|&worker, idle| {
            idle.retain_mut(|upstream| upstream.idle_since_sweep == last && upstream.is_ready());
            is_known(worker) && !idle.is_empty()
        });
    }
}
