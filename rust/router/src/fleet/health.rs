//! Health checks: each worker is asked for `/health` at every interval and marked up or down.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::base::clock;
use crate::base::fault_point::fault_point;
use crate::base::supervise::keep_running;
use crate::fleet::health_flags::Demotion;
use crate::fleet::loop_detection::{self, Destination};
use crate::fleet::resolver;
use crate::fleet::servers;
use crate::fleet::worker::{CONNECT_TIMEOUT, Fleet, Worker};
use crate::upstream::connection::{Upstream, error_text, is_exhaustion};
use crate::upstream::pool::Pool;
use crate::upstream::request_body::RequestBody;

/// A busy worker may answer late; only this many late answers in a row mean that it hangs.
const SLOW_PROBES: u32 = 2;

/// Demotes a worker that cannot be reached.
pub fn mark_down(worker: &Worker, why: &str) {
    if worker.flags.demote(Demotion::Down) {
        tracing::warn!(worker = worker.url, why, "worker is down");
    }
}

fn mark_up(worker: &Worker) {
    let is_first = worker.flags.set_probed();
    if worker.flags.came_back() || is_first {
        tracing::info!(worker = worker.url, "worker is up");
    }
}

/// The settings of health checks.
pub struct Probes {
    pub interval: Duration,
    pub timeout: Duration,
    /// The key that is shown to the fleet's workers.
    pub key: Option<HeaderValue>,
    /// The name of this router: no worker may lead back to it.
    pub router: String,
}

/// A fleet's health checks, with everything that they need.
#[derive(Clone)]
pub struct HealthChecks {
    pub fleet: Arc<Fleet>,
    /// Has connections to workers for requests of all lanes.
    pub pool: Rc<Pool>,
    pub probes: Arc<Probes>,
}

impl HealthChecks {
    /// Checks every worker in the fleet, now and later, until the runtime ends.
    pub async fn watch(self) {
        let mut watched: Vec<u32> = Vec::new();
        loop {
            let workers = self.fleet.read().clone();
            watched.retain(|id| workers.iter().any(|worker| worker.id == *id));
            for worker in workers.iter() {
                if !watched.contains(&worker.id) {
                    watched.push(worker.id);
                    let (checks, about) = (self.clone(), worker.clone());
                    keep_running("a worker's name", move || {
                        let every = checks.probes.interval;
                        resolver::follow(checks.fleet.clone(), about.clone(), every)
                    });
                    let (checks, about) = (self.clone(), worker.clone());
                    keep_running("a worker's health checks", move || {
                        checks.clone().probe_forever(about.clone())
                    });
                }
            }
            self.fleet.added.notified().await;
        }
    }

    async fn probe_forever(self, worker: Arc<Worker>) {
        let probes = &self.probes;
        let mut tick = interval(probes.interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut slow, mut is_first) = (0, true);
        let mut headers = HeaderMap::new();
        if let Some(key) = &probes.key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        worker.authorize(&mut headers);
        loop {
            tick.tick().await;
            if !self.fleet.has(&worker) {
                return;
            }
            // Workers that joined together are not all asked in the same moments.
            if std::mem::take(&mut is_first) {
                tick.reset_after(probes.interval.mul_f64(fastrand::f64()));
            }
            let since = clock::now();
            let probe = probe(&worker, &self.pool, &headers);
            match timeout(probes.timeout, probe).await {
                Ok(Ok(answer)) => {
                    slow = 0;
                    servers::learn(&worker, answer.headers());
                    match loop_detection::learn(&probes.router, &worker, &answer) {
                        Destination::ThisRouter => {
                            tracing::warn!(
                                worker = worker.url,
                                "a worker is this router itself: it is taken out of the list"
                            );
                            self.fleet.remove(&worker);
                            return;
                        }
                        // If all routers of a ring asked at the same moments, all would stop at once, and all
                        // begin again at once.
                        Destination::Loop => {
                            tick.reset_after(probes.interval.mul_f64(fastrand::f64()));
                            continue;
                        }
                        Destination::Clear => {}
                    }
                    let status = answer.status();
                    if status.is_server_error() {
                        mark_down(&worker, &format!("/health answered {status}"));
                    } else {
                        // Any other answer will do: not every worker has a /health.
                        mark_up(&worker);
                    }
                }
                // This is the router's trouble, not the worker's.
                Ok(Err(error)) if is_exhaustion(&error) => {}
                Ok(Err(error)) => {
                    slow = 0;
                    loop_detection::forget(&worker);
                    mark_down(&worker, &error.to_string());
                }
                // A worker that still answers requests is only too busy to answer this.
                Err(_) if worker.flags.last_heard() >= since => slow = 0,
                Err(_) => {
                    slow += 1;
                    if slow >= SLOW_PROBES {
                        mark_down(
                            &worker,
                            &format!("{slow} health checks in a row were not answered in time"),
                        );
                    }
                }
            }
        }
    }
}

/// Opens a new connection each time, since a healthy worker takes one. Afterwards the connection is kept for a request,
/// unless another one is kept already.
async fn probe(worker: &Worker, pool: &Rc<Pool>, headers: &HeaderMap) -> io::Result<Response<()>> {
    if let Some(fault) = fault_point("router.health") {
        fault.await?;
    }
    let mut upstream = Upstream::open(&worker.endpoint, &pool.trust, CONNECT_TIMEOUT).await?;
    let mut request = Request::get("/health")
        .header(HOST, worker.authority.clone())
        .body(RequestBody::empty())
        .expect("a constant request is valid");
    request.headers_mut().extend(headers.clone());
    let is_kept = !worker.endpoint.idle.has_fresh(clock::now());
    if !is_kept {
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let answer = upstream.send(request).await;
    let (parts, body) = answer
        .map_err(|failed| io::Error::other(error_text(failed.error())))?
        .into_parts();
    if is_kept {
        pool.finish(body.into(), upstream);
    }
    Ok(Response::from_parts(parts, ()))
}
