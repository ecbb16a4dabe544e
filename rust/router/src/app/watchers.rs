//! The background tasks, which share one thread beside the lanes. No request waits for them.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use sglang_omni_policy::Policy;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::base::memory;
use crate::base::supervise::{keep_running, run_or};
use crate::fleet::breaker::{self, Breaker};
use crate::fleet::cache_events::source::KvEvents;
use crate::fleet::cache_events::watch::EventWatch;
use crate::fleet::discovery::Discovery;
use crate::fleet::health::{HealthChecks, Probes};
use crate::fleet::models;
use crate::fleet::worker::Fleet;
use crate::front::tls::{self, Tls};
use crate::proxy::lane::Proxy;
use crate::upstream::pool::Pool;
use crate::upstream::trust;

pub struct Watchers {
    pub proxy: Arc<Proxy>,
    pub tls: Option<Arc<Tls>>,
    /// Changes when files and names must be read again.
    pub reload: watch::Receiver<()>,
    pub probes: Arc<Probes>,
    pub breaker: Breaker,
    /// How often the policy trims its memory.
    pub eviction_interval: Duration,
    pub discovery: Discovery,
}

impl Watchers {
    /// Starts every task on the calling thread. `failed` is called if discovery panics, which cannot begin again.
    pub fn start(self, failed: impl FnOnce() + 'static) {
        let (proxy, reload) = (&self.proxy, self.reload);
        let (breaker, every) = (self.breaker, self.eviction_interval);
        let checks = HealthChecks {
            fleet: proxy.fleet.clone(),
            pool: Pool::new(proxy.trust.clone()),
            probes: self.probes,
        };
        keep(proxy, "health checks", move |_| checks.clone().watch());
        keep(
            proxy,
            "the policy's upkeep",
            move |Proxy { policy, fleet, .. }| tidy(policy.clone(), fleet.clone(), every),
        );
        keep(proxy, "models", |Proxy { models, trust, .. }| {
            models::watch(models.clone(), trust.clone())
        });
        keep(proxy, "circuit breaker", move |Proxy { fleet, .. }| {
            breaker::watch(fleet.clone(), breaker)
        });
        if let Some(tls) = self.tls {
            let reload = reload.clone();
            keep(proxy, "certificate", move |_| {
                tls::watch(tls.clone(), reload.clone())
            });
        }
        let (limits, tenants) = (proxy.clone(), reload.clone());
        keep(proxy, "tenants", move |_| {
            let (limits, reload) = (limits.clone(), tenants.clone());
            async move { limits.in_flight.watch(reload).await }
        });
        keep(proxy, "authorities", move |Proxy { trust, .. }| {
            trust::watch(trust.clone(), reload.clone())
        });
        keep(proxy, "memory", |Proxy { metrics, .. }| {
            memory::give_back(metrics.clone())
        });
        run_or("discovery", self.discovery.watch(), failed);
    }
}

/// Follows the events of the workers' caches, on the calling thread.
pub fn follow_events(proxy: Arc<Proxy>, option: KvEvents, key: Option<HeaderValue>) {
    let pool = Pool::new(proxy.trust.clone());
    keep(
        &proxy,
        "cache events",
        move |Proxy { fleet, policy, .. }| {
            let watch = EventWatch {
                fleet: fleet.clone(),
                policy: policy.clone(),
                option: option.clone(),
                pool: pool.clone(),
                key: key.clone(),
            };
            watch.watch()
        },
    );
}

/// Keeps a task running.
fn keep<F>(proxy: &Arc<Proxy>, name: &'static str, mut task: impl FnMut(&Proxy) -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let proxy = proxy.clone();
    keep_running(name, move || task(&proxy));
}

/// Has the policy trim its memory at every interval, and when a worker was removed, until the runtime ends.
async fn tidy(policy: Arc<dyn Policy>, fleet: Arc<Fleet>, every: Duration) {
    loop {
        let _ = timeout(every, fleet.removed.notified()).await;
        let slots: Vec<u32> = fleet.read().iter().map(|worker| worker.slot()).collect();
        policy.maintain(&slots);
    }
}
