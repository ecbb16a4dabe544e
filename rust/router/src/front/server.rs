//! Threads, listeners and client connections, and how all of it ends.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::admin;
use crate::config::{Config, ConfigError};
use crate::fleet::discovery::Discovery;
use crate::fleet::health;
use crate::fleet::hung::Patience;
use crate::fleet::models::{self, Models};
use crate::fleet::standing::Behind;
use crate::fleet::worker::{Fleet, Worker};
use crate::front::client::{Client, Limits, Phase};
use crate::front::client_io::ClientIo;
use crate::front::cors;
use crate::front::gate;
use crate::front::gate::Gate;
use crate::front::listen;
use crate::front::reply;
use crate::front::tls;
use crate::front::tls::{ClientStream, Tls};
use crate::policy;
use crate::request::body::ReplyBody;
use crate::request::exchange::Exchange;
use crate::request::forwarding;
use crate::request::proxy;
use crate::request::upgrade;
use crate::request::upstream::SWEEP_INTERVAL;
use crate::runtime::clock::{self, TICK};
use crate::runtime::lane::{Lane, Open, Shared, Stopping};
use crate::runtime::memory;
use crate::runtime::spin::Spin;
use crate::telemetry::log::{Level, Log, Writer};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::scrape;

/// Bytes of headers in one request; more is refused with 431.
const MAX_HEADER_BYTES: usize = 64 << 10;

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
        let workers: Result<Vec<Worker>, ConfigError> = config
            .worker_urls
            .iter()
            .map(|url| Worker::parse(url))
            .collect();
        let workers = workers.map_err(StartError::Config)?;
        let gate = Gate::new(&config).map_err(StartError::Config)?;
        let tls = Tls::read(&config).map_err(StartError::Config)?;
        listen::allow_descriptors();
        let lanes = match config.threads {
            0 => thread::available_parallelism().map_or(1, |count| count.get()),
            count => count,
        };
        let listeners = listen(&config.host, config.port, lanes)?;
        let scraped = config
            .prometheus_port
            .map(|port| listen(&config.prometheus_host, port, 1))
            .transpose()?
            .unwrap_or_default();
        let local = |listener: &StdListener| listener.local_addr().map_err(StartError::Runtime);
        let addr = local(&listeners[0])?;
        let metrics_addr = scraped.first().map(local).transpose()?;
        let (log, writer) =
            Log::start(config.log_level, config.log_format).map_err(StartError::Runtime)?;
        let (stopping, stopped) = watch::channel(Stopping::No);
        let (reload, reloaded) = watch::channel(());
        let shared = Arc::new(Shared {
            policy: policy::build(&config),
            fleet: Fleet::new(workers),
            models: Models::default(),
            gate,
            tls,
            metrics: Metrics::new(lanes),
            log,
            stopping: stopped,
            reload: reloaded,
            config,
        });
        let discovery = Discovery::start(&shared).map_err(StartError::Config)?;
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
            let spin = Spin::new(shared.clone(), index);
            let mut runtime = Builder::new_current_thread();
            let before_park = spin.clone();
            runtime.on_thread_park(move || before_park.before_park());
            router.spawn(format!("router-{index}"), runtime, move |runtime| {
                runtime.block_on(serve(shared, index, listener, spin))
            })?;
        }
        let runtime = Builder::new_current_thread();
        router.spawn("router-health".to_owned(), runtime, move |runtime| {
            runtime.block_on(async {
                let mut stopping = shared.stopping.clone();
                tokio::task::spawn_local(health::watch(shared.clone()));
                tokio::task::spawn_local(health::maintain(shared.clone()));
                tokio::task::spawn_local(models::watch(shared.clone()));
                tokio::task::spawn_local(discovery.watch(shared.clone()));
                tokio::task::spawn_local(health::judge(shared.clone()));
                tokio::task::spawn_local(tls::watch(shared.clone()));
                tokio::task::spawn_local(memory::give_back(shared.clone()));
                for listener in scraped {
                    tokio::task::spawn_local(scrape::serve(shared.clone(), listener));
                }
                let _ = stopping.wait_for(|stopping| *stopping > Stopping::No).await;
            });
        })?;
        Ok(router)
    }

    fn spawn(
        &mut self,
        name: String,
        mut runtime: Builder,
        body: impl FnOnce(&LocalRuntime) + Send + 'static,
    ) -> Result<(), StartError> {
        let running = self.running.clone();
        *running.count.lock().unwrap() += 1;
        let run = move || {
            // Counts down even when the thread panics.
            struct Ended(Arc<Running>);
            impl Drop for Ended {
                fn drop(&mut self) {
                    *self.0.count.lock().unwrap() -= 1;
                    self.0.ended.notify_all();
                }
            }
            let _ended = Ended(running);
            let runtime = runtime
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

    /// Reads the workers' file and resolves the workers' names again, now.
    pub fn reload(&self) {
        self.reload.send_replace(());
    }

    /// Takes no more connections and ends when what is in flight is done, or after `drain_timeout`.
    pub fn drain(&self) {
        let in_flight = self.shared.metrics.in_flight();
        let log = &self.shared.log;
        log.info("shutting down", &[("in_flight", &in_flight)]);
        self.stopping.send_if_modified(|now| {
            std::mem::replace(now, Stopping::Drain.max(*now)) == Stopping::No
        });
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

fn listen(host: &str, port: u16, lanes: usize) -> Result<Vec<StdListener>, StartError> {
    listen::bind(host, port, lanes).map_err(|error| StartError::Listen {
        host: host.to_owned(),
        port,
        error,
    })
}

/// One lane from its start to its end.
async fn serve(shared: Arc<Shared>, index: usize, listener: StdListener, spin: Arc<Spin>) {
    tokio::task::spawn_local(spin.clone().idle());
    let lane = Lane::new(shared.clone(), index, spin);
    let listener =
        TcpListener::from_std(listener).expect("the listener is a non-blocking TCP socket");
    let mut stopping = shared.stopping.clone();
    let mut sweep = interval(SWEEP_INTERVAL);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let patience = Patience::new(&shared.config);
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let limits = Limits::new(&shared.config);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    tokio::task::spawn_local(connection(lane.clone(), stream, peer));
                }
                // Out of descriptors, most likely: some must be closed first.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
            _ = sweep.tick() => {
                let fleet = shared.fleet.read();
                // A worker that cannot be reached may be another process, or elsewhere, when it can.
                let is_usable = |worker: &Worker| !worker.standing.is(Behind::Down);
                lane.pool
                    .sweep(|id| fleet.iter().any(|worker| worker.id == id && is_usable(worker)));
            }
            _ = tick.tick() => {
                lane.retries.refill();
                let now = clock::advance();
                let fleet = shared.fleet.read();
                lane.waiting.sweep(&fleet, &patience, now, &shared.log);
                lane.clients.look_over(now, &limits);
            }
            _ = stopping.changed() => break,
        }
    }
    drop(listener);
    lane.clients.dismiss();
    let deadline = Instant::now() + shared.config.drain_timeout;
    while *stopping.borrow() < Stopping::Now && lane.open.get() > 0 && Instant::now() < deadline {
        tokio::select! {
            _ = stopping.changed() => {}
            () = sleep(Duration::from_millis(20)) => {}
        }
    }
}

/// One client's connection.
async fn connection(lane: Rc<Lane>, stream: TcpStream, peer: SocketAddr) {
    if stream.set_nodelay(true).is_err() {
        return; // Already closed by the client.
    }
    let _open = Open::new(lane.clone());
    lane.metrics().accepted.fetch_add(1, Relaxed);
    let Some(stream) = secured(&lane, stream).await else {
        return;
    };
    let entry = lane.clients.enter();
    let client = &entry.client;
    let service = service_fn(|request| respond(&lane, client, peer, request));
    let io = TokioIo::new(ClientIo::new(stream, client.clone()));
    let mut http = http1::Builder::new();
    http.auto_date_header(false).preserve_header_case(true);
    let mut http = pin!(http.serve_connection(io, service).with_upgrades());
    let mut is_leaving = false;
    poll_fn(|cx| {
        lane.spin.turn();
        client.is_driven_by(cx.waker());
        // Who is late with a body is told so by whoever reads it.
        if client.is_late() && client.phase() != Phase::Body {
            return Poll::Ready(());
        }
        if lane.clients.are_leaving() && !is_leaving {
            is_leaving = true;
            http.as_mut().graceful_shutdown();
        }
        // Errors are the client's: it left, or sent what is not HTTP and was told so.
        http.as_mut().poll(cx).map(drop)
    })
    .await;
}

/// The connection with TLS on it, if clients are to use that. The handshake has as long as a head.
async fn secured(lane: &Lane, stream: TcpStream) -> Option<ClientStream> {
    let Some(tls) = &lane.shared.tls else {
        return Some(ClientStream::Plain(stream));
    };
    let mut stopping = lane.shared.stopping.clone();
    let error = tokio::select! {
        done = timeout(lane.shared.config.header_timeout, tls.accept(stream)) => match done {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        },
        _ = stopping.changed() => return None,
    };
    lane.metrics().failed_handshakes.fetch_add(1, Relaxed);
    let log = &lane.shared.log;
    log.event(Level::Debug, "TLS handshake failed", &[("why", &error)]);
    None
}

async fn respond(
    lane: &Rc<Lane>,
    client: &Arc<Client>,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    client.enters(Phase::Busy);
    let id = gate::identify(lane, &mut request);
    let mut exchange = Box::new(Exchange::begin(lane, peer, client.clone(), id, &request));
    let origin = lane.shared.gate.cors.origin(request.headers());
    let asked = origin.as_ref().and_then(|_| cors::preflight(&request));
    let mut reply = match asked {
        Some(reply) => reply,
        None => route(lane, &mut exchange, request).await,
    };
    exchange.answers(&mut reply);
    if let Some(origin) = origin {
        cors::allow(origin, &mut reply);
    }
    Ok(reply.map(|payload| ReplyBody::new(payload, client.clone(), exchange)))
}

async fn route(
    lane: &Rc<Lane>,
    exchange: &mut Exchange,
    mut request: Request<Incoming>,
) -> reply::Reply {
    let size = forwarding::size(request.headers());
    if size > MAX_HEADER_BYTES {
        let message =
            format!("the request's headers take {size} bytes; the limit is {MAX_HEADER_BYTES}");
        return reply::error(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &message);
    }
    if request.method() == Method::CONNECT {
        return reply::error(
            StatusCode::METHOD_NOT_ALLOWED,
            "CONNECT: this is a router, not a forward proxy",
        );
    }
    if request.uri().authority().is_some() {
        forwarding::to_origin_form(&mut request);
    }
    if let Err(refusal) = gate::authenticate(lane, &mut request) {
        return refusal.reply(request);
    }
    let request = match admin::answer(lane, request).await {
        Ok(reply) => return reply,
        Err(request) => request,
    };
    if let Err(refusal) = gate::enter(lane, exchange).await {
        return refusal.reply(request);
    }
    // With a body it is a request first; its offer to upgrade may be ignored.
    if forwarding::wants_upgrade(request.headers()) && request.body().is_end_stream() {
        return upgrade::forward(lane, exchange, request).await;
    }
    proxy::forward(lane, exchange, request).await
}
