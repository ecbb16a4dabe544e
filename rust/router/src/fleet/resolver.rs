//! Keeps a worker's address up to date by looking its name up again and again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::fleet::health_flags::Demotion;
use crate::fleet::worker::{Fleet, Worker};

/// How old a look-up may be. While its worker is down, a name is looked up before each probe.
const REFRESH: Duration = Duration::from_secs(10);

/// Looks a worker's name up until the worker leaves the fleet.
pub async fn follow(fleet: Arc<Fleet>, worker: Arc<Worker>, probe_interval: Duration) {
    let address = &worker.endpoint.address;
    if !address.is_name() {
        return;
    }
    while fleet.has(&worker) {
        address.look_up().await;
        let next = Instant::now() + REFRESH;
        while Instant::now() < next && fleet.has(&worker) {
            sleep(probe_interval.min(REFRESH)).await;
            if worker.flags.is(Demotion::Down) {
                break;
            }
        }
    }
}
