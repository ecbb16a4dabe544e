//! Starts and stops a router's threads.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sglang_omni_policy::Policy;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, watch};
use tracing::dispatcher::set_default;

use crate::admin::pages::{self, Wanted};
use crate::admin::scrape;
use crate::app::config::Config;
use crate::app::settings;
use crate::app::watchers::{Watchers, follow_events};
use crate::base::config_error::ConfigError;
use crate::base::log::Log;
use crate::base::metrics::Metrics;
use crate::base::stopping::{Stopping, drain};
use crate::base::supervise::keep_running;
use crate::base::tracing_context::Tracer;
use crate::fleet::cache_events::source::KvEvents;
use crate::fleet::discovery::Discovery;
use crate::fleet::models::Models;
use crate::fleet::sessions::Sessions;
use crate::fleet::worker::Fleet;
use crate::front::connection::{self, Front};
use crate::front::listen;
use crate::proxy::in_flight::InFlight;
use crate::proxy::lane::{Lane, Proxy};
use crate::upstream::span_export;

#[derive(Debug)]
pub enum StartError {
    Config(ConfigError),
    Listen {
        host: String,
        port: u16,
        error: io::Error,
    },
    Runtime(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(error) => error.fmt(f),
            StartError::Listen { host, port, error }
                if error.kind() == io::ErrorKind::AddrInUse =>
            {
                write!(
                    f,
                    "port {port} of {host} is in use; give another one, or 0 for a free one"
                )
            }
            StartError::Listen { host, port, error } => {
                write!(f, "cannot listen on {host}:{port}: {error}")
            }
            StartError::Runtime(error) => write!(f, "cannot start the router's threads: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> StartError {
        StartError::Config(error)
    }
}

/// A running router. Dropping it stops it at once.
pub struct Router {
    addr: SocketAddr,
    /// The port for `/metrics` alone.
    metrics_addr: Option<SocketAddr>,
    front: Arc<Front>,
    proxy: Arc<Proxy>,
    stopping: watch::Sender<Stopping>,
    reload: watch::Sender<()>,
    threads: Vec<JoinHandle<()>>,
    running: Arc<Running>,
    /// Dropped last, when no thread logs any more.
    log: Log,
}

/// How many threads have not ended yet.
struct Running {
    count: Mutex<usize>,
    ended: Condvar,
}

impl Router {
    /// Binds the port and starts serving.
    pub fn start(config: Config) -> Result<Router, StartError> {
        config.validate()?;
        let checked = settings::read(&config)?;
        listen::allow_descriptors();
        let lanes = match config.threads {
            0 => thread::available_parallelism().map_or(1, |count| count.get()),
            count => count,
        };
        let stall = config.stall_timeout;
        let listeners = listen(&config.host, config.port, lanes, stall)?;
        let scraped = config
            .prometheus_port
            .map(|port| listen(&config.prometheus_host, port, 1, stall))
            .transpose()?;
        let scraped: Vec<StdListener> = scraped.into_iter().flatten().flatten().collect();
        let local = |listener: &StdListener| listener.local_addr().map_err(StartError::Runtime);
        let addr = local(&listeners[0][0])?;
        let metrics_addr = scraped.first().map(local).transpose()?;
        let log = Log::start(config.log_level, config.log_format);
        let _logs = set_default(&log.dispatch);
        let (stopping, stopped) = watch::channel(Stopping::No);
        let (reload, reloaded) = watch::channel(());
        let policy: Arc<dyn Policy> =
            Arc::from(sglang_omni_policy::build(&config.policy_settings()));
        let told = policy.clone();
        // An earlier worker may have had the same slot.
        let fleet = Arc::new(Fleet::new(checked.workers, move |added| {
            told.forget(added.slot());
        }));
        let discovery = Discovery::start(fleet.clone(), checked.sources, reloaded.clone())?;
        let probes = settings::probes(&config, &checked.gate.keys);
        let (spans, ended_spans) = mpsc::channel(span_export::QUEUE);
        let (collector, sampler) = checked.tracing.unzip();
        let proxy = Arc::new(Proxy {
            settings: settings::proxy(&config),
            models: Arc::new(Models::new(fleet.clone(), probes.key.clone())),
            fleet,
            policy,
            sessions: Sessions::default(),
            trust: Arc::new(checked.trust),
            in_flight: InFlight::new(checked.limits),
            metrics: Arc::new(Metrics::new(lanes)),
            tracer: sampler.map(|sampler| Tracer { sampler, spans }),
            log_losses: log.losses.clone(),
        });
        let (pages, writers) = pages::channel();
        let of_scrapers = Wanted {
            sees_urls: config.expose_worker_urls,
            of_workers: true,
            key: probes.key.clone(),
        };
        let front = Arc::new(Front {
            admin: settings::admin(&config, &probes, stopped.clone(), pages.clone()),
            gate: checked.gate,
            tls: checked.tls.map(Arc::new),
            limits: settings::limits(&config),
            handshake_timeout: config.header_timeout,
            drain_timeout: config.drain_timeout,
            unsent: Arc::default(),
            stopping: stopped,
        });
        let running = Arc::new(Running {
            count: Mutex::new(0),
            ended: Condvar::new(),
        });
        let mut router = Router {
            addr,
            metrics_addr,
            front,
            proxy,
            stopping,
            reload,
            threads: Vec::new(),
            running,
            log,
        };
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (front, proxy) = (router.front.clone(), router.proxy.clone());
            router.spawn(format!("router-{index}"), move |runtime| {
                runtime.block_on(connection::serve(front, Lane::new(proxy, index), listeners))
            })?;
        }
        let (option, key) = (KvEvents::parse(&config.kv_events)?, probes.key.clone());
        let watchers = Watchers {
            proxy: router.proxy.clone(),
            tls: router.front.tls.clone(),
            reload: reloaded,
            probes: Arc::new(probes),
            breaker: settings::breaker(&config),
            eviction_interval: config.eviction_interval,
            discovery,
        };
        let (proxy, mut stopping) = (router.proxy.clone(), router.front.stopping.clone());
        router.spawn("router-metrics".to_owned(), move |runtime| {
            runtime.block_on(async {
                writers.start(&proxy);
                for listener in scraped {
                    let (pages, wanted) = (pages.clone(), of_scrapers.clone());
                    keep_running("metrics port", move || {
                        scrape::serve(pages.clone(), wanted.clone(), listener.try_clone())
                    });
                }
                let _ = stopping.wait_for(|stopping| *stopping > Stopping::No).await;
            });
        })?;
        let failed = router.stopping.clone();
        let mut stopping = router.front.stopping.clone();
        router.spawn("router-watch".to_owned(), move |runtime| {
            runtime.block_on(async {
                watchers.start(move || drain(&failed));
                let _ = stopping.wait_for(|stopping| *stopping > Stopping::No).await;
            });
        })?;
        if option != KvEvents::Off {
            // In a thread of its own: thousands of events a second must not delay health checks.
            let (proxy, mut stopping) = (router.proxy.clone(), router.front.stopping.clone());
            router.spawn("router-events".to_owned(), move |runtime| {
                runtime.block_on(async {
                    follow_events(proxy, option, key);
                    let _ = stopping.wait_for(|stopping| *stopping > Stopping::No).await;
                });
            })?;
        }
        if let Some(collector) = collector {
            // In a thread of its own, which ends after the others: the last requests' spans come with their end.
            let (proxy, running) = (router.proxy.clone(), router.running.clone());
            let stopping = router.front.stopping.clone();
            router.spawn("router-spans".to_owned(), move |runtime| {
                let is_over =
                    || *stopping.borrow() > Stopping::No && *running.count.lock().unwrap() <= 1;
                runtime.block_on(collector.export(&proxy.trust, ended_spans, is_over));
            })?;
        }
        Ok(router)
    }

    fn spawn(
        &mut self,
        name: String,
        body: impl FnOnce(&LocalRuntime) + Send + 'static,
    ) -> Result<(), StartError> {
        let failed = self.stopping.clone();
        let running = self.running.clone();
        *running.count.lock().unwrap() += 1;
        let dispatch = self.log.dispatch.clone();
        let run = move || {
            let _logs = set_default(&dispatch);
            // Counts down even if the thread panics.
            struct Ended(Arc<Running>, watch::Sender<Stopping>);
            impl Drop for Ended {
                fn drop(&mut self) {
                    if thread::panicking() {
                        // The whole router ends, so that its supervisor starts it again. Half a router would go
                        // unnoticed.
                        drain(&self.1);
                    }
                    *self.0.count.lock().unwrap() -= 1;
                    self.0.ended.notify_all();
                }
            }
            let _ended = Ended(running, failed);
            let runtime = Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default())
                .expect("a runtime needs only an epoll instance");
            body(&runtime);
            // A look-up of a name must not delay the end.
            runtime.shutdown_background();
        };
        self.threads.push(
            thread::Builder::new()
                .name(name)
                .spawn(run)
                .map_err(StartError::Runtime)?,
        );
        Ok(())
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        let scheme = if self.front.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.addr)
    }

    /// Logs where it listens; launchers wait for that line.
    pub fn announce(&self) {
        let _logs = set_default(&self.log.dispatch);
        tracing::info!("listening on {}", self.url());
        if let Some(addr) = self.metrics_addr {
            tracing::info!("metrics are at http://{addr}/metrics");
        }
        if self.proxy.fleet.read().is_empty() {
            tracing::warn!("there are no workers yet, POST /workers adds them");
        }
    }

    /// The address that it listens on, with the real port if 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Reads the workers' file, the certificate and the authorities again and looks names of workers up, now.
    pub fn reload(&self) {
        self.reload.send_replace(());
    }

    /// Takes no more connections and ends once no request is in flight, or after `drain_timeout`.
    pub fn drain(&self) {
        let in_flight = self.proxy.metrics.in_flight();
        let _logs = set_default(&self.log.dispatch);
        tracing::info!(%in_flight, "shutting down");
        drain(&self.stopping);
    }

    /// Ends now, even if requests are in flight.
    pub fn stop(&self) {
        self.stopping.send_replace(Stopping::Now);
    }

    /// Waits for the router's end for at most `limit`; returns whether it has ended.
    pub fn wait(&self, limit: Duration) -> bool {
        let count = self.running.count.lock().unwrap();
        let (count, _) = self
            .running
            .ended
            .wait_timeout_while(count, limit, |count| *count > 0)
            .unwrap();
        *count == 0
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

fn listen(
    host: &str,
    port: u16,
    lanes: usize,
    stall: Duration,
) -> Result<Vec<Vec<StdListener>>, StartError> {
    listen::bind(host, port, lanes, stall).map_err(|error| StartError::Listen {
        host: host.to_owned(),
        port,
        error,
    })
}
