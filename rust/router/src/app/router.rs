//! A router: what it consists of, its threads, and how they end.

use std::fmt;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sglang_omni_policy::Policy;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch;
use tokio::time::{Instant, interval_at};

use crate::admin::scrape;
use crate::app::config::Config;
use crate::base::clock;
use crate::base::config_error::ConfigError;
use crate::base::log::{Log, Writer};
use crate::base::memory;
use crate::base::metrics::Metrics;
use crate::base::request_id;
use crate::base::stopping::{Stopping, drain};
use crate::base::supervise::{keep_running, run_or};
use crate::fleet::breaker::{self, Breaker};
use crate::fleet::discovery::{self, Discovery, Sources};
use crate::fleet::health::{self, Probes};
use crate::fleet::models::{self, Models};
use crate::fleet::worker::{Change, Fleet, Worker};
use crate::front::gate::Gate;
use crate::front::tls::{self, Tls};
use crate::front::{connection, listen};
use crate::proxy::lane::Shared;
use crate::upstream::trust::{self, Trust};
use crate::upstream::worker_url::WorkerUrl;

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

/// A running router. Dropping it stops it at once.
pub struct Router {
    addr: SocketAddr,
    /// Where `/metrics` is alone.
    metrics_addr: Option<SocketAddr>,
    shared: Arc<Shared>,
    stopping: watch::Sender<Stopping>,
    reload: watch::Sender<()>,
    threads: Vec<JoinHandle<()>>,
    writer: Option<Writer>,
    running: Arc<Running>,
}

/// How many threads have not ended yet.
struct Running {
    count: Mutex<usize>,
    ended: Condvar,
}

impl Router {
    /// Binds the port and starts serving.
    pub fn start(config: Config) -> Result<Router, StartError> {
        config.validate().map_err(StartError::Config)?;
        let workers: Result<Vec<WorkerUrl>, ConfigError> =
            config.worker_urls.iter().map(|url| url.parse()).collect();
        let workers = workers.map_err(StartError::Config)?;
        let gate = Gate::new(&config).map_err(StartError::Config)?;
        let tls = Tls::read(&config).map_err(StartError::Config)?;
        let trust = Trust::read(config.worker_ca_file.clone()).map_err(StartError::Config)?;
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
            .transpose()?
            .unwrap_or_default();
        let local = |listener: &StdListener| listener.local_addr().map_err(StartError::Runtime);
        let addr = local(&listeners[0])?;
        let metrics_addr = scraped.first().map(local).transpose()?;
        let (log, writer) =
            Log::start(config.log_level, config.log_format).map_err(StartError::Runtime)?;
        let (stopping, stopped) = watch::channel(Stopping::No);
        let (reload, reloaded) = watch::channel(());
        let log = Arc::new(log);
        let policy: Arc<dyn Policy> =
            Arc::from(sglang_omni_policy::build(&config.policy_settings()));
        let told = policy.clone();
        let fleet = Arc::new(Fleet::new(workers, move |change| match change {
            // What was known of an earlier one in its place.
            Change::Added(worker) => told.forget(worker.slot()),
            Change::Removed(rest) => told.maintain(&slots(rest)),
        }));
        let sources = Sources {
            file: config.workers_file.clone(),
            names: discovery::names(&config.worker_dns).map_err(StartError::Config)?,
            dns_interval: config.dns_interval,
        };
        let discovery = Discovery::start(fleet.clone(), sources, reloaded.clone(), log.clone())
            .map_err(StartError::Config)?;
        let worker_key = gate.keys.worker.clone();
        let probes = Arc::new(Probes {
            interval: config.probe_interval,
            timeout: config.probe_timeout,
            key: worker_key.clone(),
            router: request_id::unique(),
        });
        let breaker = Breaker {
            threshold: (!config.disable_circuit_breaker).then_some(config.cb_failure_threshold),
            recovery: clock::ticks(config.cb_timeout),
        };
        let shared = Arc::new(Shared {
            policy,
            models: Arc::new(Models::new(fleet.clone(), worker_key)),
            fleet,
            gate,
            tls,
            trust: Arc::new(trust),
            metrics: Arc::new(Metrics::new(lanes)),
            log,
            stopping: stopped,
            reload: reloaded,
            name: probes.router.clone(),
            config,
        });
        let running = Arc::new(Running {
            count: Mutex::new(0),
            ended: Condvar::new(),
        });
        let mut router = Router {
            addr,
            metrics_addr,
            shared: shared.clone(),
            stopping,
            reload,
            threads: Vec::new(),
            writer: Some(writer),
            running,
        };
        for (index, listener) in listeners.into_iter().enumerate() {
            let shared = shared.clone();
            router.spawn(format!("router-{index}"), move |runtime| {
                runtime.block_on(connection::serve(shared, index, listener))
            })?;
        }
        let failed = router.stopping.clone();
        // Everything that goes on beside the requests.
        router.spawn("router-watch".to_owned(), move |runtime| {
            runtime.block_on(async {
                let mut stopping = shared.stopping.clone();
                keep(&shared, "health checks", move |shared| {
                    health::watch(
                        shared.fleet.clone(),
                        shared.trust.clone(),
                        probes.clone(),
                        shared.log.clone(),
                    )
                });
                keep(&shared, "the policy's upkeep", tidy_policy);
                keep(&shared, "models", |shared| {
                    models::watch(shared.models.clone(), shared.trust.clone())
                });
                keep(&shared, "circuit breaker", move |shared| {
                    breaker::watch(shared.fleet.clone(), breaker, shared.log.clone())
                });
                keep(&shared, "certificate", tls::watch);
                keep(&shared, "authorities", |shared| {
                    trust::watch(
                        shared.trust.clone(),
                        shared.reload.clone(),
                        shared.log.clone(),
                    )
                });
                keep(&shared, "memory", |shared| {
                    memory::give_back(shared.metrics.clone())
                });
                let task = discovery.watch();
                run_or(shared.log.clone(), "discovery", task, move || {
                    drain(&failed)
                });
                for listener in scraped {
                    keep(&shared, "metrics port", move |shared| {
                        scrape::serve(shared, listener.try_clone())
                    });
                }
                let _ = stopping.wait_for(|stopping| *stopping > Stopping::No).await;
            });
        })?;
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
        let run = move || {
            // Counts down even when the thread panics.
            struct Ended(Arc<Running>, watch::Sender<Stopping>);
            impl Drop for Ended {
                fn drop(&mut self) {
                    if thread::panicking() {
                        // Its supervisor starts it again; half of a router would not be noticed.
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
            // A name being looked up must not hold the end up.
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

    /// Its address as a client writes it.
    pub fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.addr)
    }

    /// Logs where it listens, for whoever waits for that.
    pub fn announce(&self) {
        let log = &self.shared.log;
        log.info(format!("listening on {}", self.url()), &[]);
        if let Some(addr) = self.metrics_addr {
            log.info(format!("metrics are at http://{addr}/metrics"), &[]);
        }
        if self.shared.fleet.read().is_empty() {
            log.warn("there are no workers yet, POST /workers adds them", &[]);
        }
    }

    /// Where it listens; the port is the real one where 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Reads the workers' file and the certificate and resolves the workers' names again, now.
    pub fn reload(&self) {
        self.reload.send_replace(());
    }

    /// Takes no more connections and ends when what is in flight is done, or after `drain_timeout`.
    pub fn drain(&self) {
        let in_flight = self.shared.metrics.in_flight();
        let log = &self.shared.log;
        log.info("shutting down", &[("in_flight", &in_flight)]);
        drain(&self.stopping);
    }

    /// Ends now, whatever is in flight.
    pub fn stop(&self) {
        self.stopping.send_replace(Stopping::Now);
    }

    /// Waits for the end for at most `limit`; returns whether it has come.
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

/// Keeps a task of the watching thread running.
fn keep<F>(
    shared: &Arc<Shared>,
    name: &'static str,
    mut task: impl FnMut(Arc<Shared>) -> F + 'static,
) where
    F: Future<Output = ()> + 'static,
{
    let (log, shared) = (shared.log.clone(), shared.clone());
    keep_running(log, name, move || task(shared.clone()));
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
        if let Some(writer) = self.writer.take() {
            writer.finish(&self.shared.log);
        }
    }
}

fn listen(
    host: &str,
    port: u16,
    lanes: usize,
    stall: Duration,
) -> Result<Vec<StdListener>, StartError> {
    listen::bind(host, port, lanes, stall).map_err(|error| StartError::Listen {
        host: host.to_owned(),
        port,
        error,
    })
}

/// Has the policy tidy up at every eviction interval, until the runtime ends.
async fn tidy_policy(shared: Arc<Shared>) {
    let every = shared.config.eviction_interval;
    let Some(first) = Instant::now().checked_add(every) else {
        return pending().await;
    };
    let mut tick = interval_at(first, every);
    loop {
        tick.tick().await;
        shared.policy.maintain(&slots(&shared.fleet.read()));
    }
}

fn slots(fleet: &[Arc<Worker>]) -> Vec<u32> {
    fleet.iter().map(|worker| worker.slot()).collect()
}
