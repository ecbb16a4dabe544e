//! Connections to workers. Each lane keeps its own, and nothing polls one but the request that holds it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};

use crate::fleet::standing::Behind;
use crate::fleet::trust::Trust;
use crate::fleet::worker::Worker;
use crate::request::upload::RequestBody;
use crate::request::usage::Tail;
use crate::runtime::lane::Shared;
use crate::runtime::stream::Stream;

pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Unlike a connection, which its system takes, a handshake takes the worker itself, which may be busy.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A host that vanished without a word is asked after this long, and given up by the system after that.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5));
const GONE_AFTER: Duration = Duration::from_secs(60);

/// For a worker that is known not to answer: no request should wait long to hear that nothing has changed.
const CONNECT_TIMEOUT_DOWN: Duration = Duration::from_millis(500);

/// Idle connections are looked over once in this many seconds, and closed the second time.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

type Connection = http1::Connection<TokioIo<Stream>, RequestBody>;
pub type Sender = http1::SendRequest<RequestBody>;

/// Boxed wherever it is handed on: a connection's state is most of a KiB.
pub struct Upstream {
    sender: Sender,
    /// None once it has ended.
    connection: Option<Connection>,
    worker: u32,
    /// Whether it has carried a request before: then the worker may have closed it in the meantime.
    pub reused: bool,
    idle_since_sweep: u32,
    /// The end of the answer it is bringing, where that is read.
    pub tail: Tail,
}

/// How long a request waits for a connection.
pub fn connect_limit(worker: &Worker) -> Duration {
    if worker.standing.is(Behind::Down) {
        CONNECT_TIMEOUT_DOWN
    } else {
        CONNECT_TIMEOUT
    }
}

/// Opens a connection; the caller drives it.
pub async fn connect(
    worker: &Worker,
    trust: &Trust,
    limit: Duration,
) -> io::Result<(Sender, Connection)> {
    let stream = within(limit, "connection", worker.address.connect()).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_user_timeout(Some(GONE_AFTER))?;
    let stream = match worker.certified_as.clone() {
        None => Stream::Plain(stream),
        Some(name) => {
            // Boxed, that a request has no room for it where there is none.
            let secured = Box::pin(trust.secure(name, stream));
            within(HANDSHAKE_TIMEOUT, "TLS", secured).await?
        }
    };
    http1::Builder::new()
        .preserve_header_case(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)
}

async fn within<T>(
    limit: Duration,
    what: &str,
    coming: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let too_late = |_| {
        let text = format!("no {what} after {} s", limit.as_secs_f32());
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    tokio::time::timeout(limit, coming)
        .await
        .map_err(too_late)?
}

impl Upstream {
    pub async fn open(
        worker: &Worker,
        trust: &Trust,
        limit: Duration,
    ) -> io::Result<Box<Upstream>> {
        let (sender, connection) = connect(worker, trust, limit).await?;
        Ok(Box::new(Upstream {
            sender,
            connection: Some(connection),
            worker: worker.id,
            reused: false,
            idle_since_sweep: 0,
            tail: Tail::default(),
        }))
    }

    /// Sends a request and waits for the head of the answer.
    pub async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let connection = &mut self.connection;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            drive(connection, cx);
            answer.as_mut().poll(cx)
        })
        .await
    }

    /// Moves bytes in both directions as far as they go without waiting.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.connection, cx);
    }

    /// Whether another request can be sent on it right now.
    fn is_ready(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.sender.is_ready()
    }
}

fn drive(connection: &mut Option<Connection>, cx: &mut Context<'_>) {
    if let Some(open) = connection
        && Pin::new(open).poll(cx).is_ready()
    {
        // Dropping it hands its error, or the unsent request, to whoever waits for the answer.
        *connection = None;
    }
}

/// Idle connections by worker, the most recently used one last.
pub struct Pool {
    #[allow(clippy::vec_box)] // They come boxed and leave boxed.
    idle: RefCell<HashMap<u32, Vec<Box<Upstream>>>>,
    sweeps: Cell<u32>,
    trust: Arc<Trust>,
}

impl Pool {
    pub fn new(shared: &Shared) -> Rc<Pool> {
        Rc::new(Pool {
            idle: RefCell::default(),
            sweeps: Cell::new(0),
            trust: shared.trust.clone(),
        })
    }

    /// An idle connection to the worker, or a new one.
    pub async fn get(&self, worker: &Worker) -> io::Result<Box<Upstream>> {
        while let Some(mut upstream) = self.pop(worker.id) {
            if upstream.is_ready() {
                return Ok(upstream);
            }
        }
        self.open(worker).await
    }

    /// A connection that nothing was sent on yet.
    pub async fn open(&self, worker: &Worker) -> io::Result<Box<Upstream>> {
        Upstream::open(worker, &self.trust, connect_limit(worker)).await
    }

    fn pop(&self, worker: u32) -> Option<Box<Upstream>> {
        self.idle.borrow_mut().get_mut(&worker)?.pop()
    }

    /// Keeps a connection whose answer was read to its end; one that cannot be used again is closed.
    pub fn put_back(&self, mut upstream: Box<Upstream>) {
        if upstream.is_ready() {
            upstream.reused = true;
            upstream.idle_since_sweep = self.sweeps.get();
            self.idle
                .borrow_mut()
                .entry(upstream.worker)
                .or_default()
                .push(upstream);
        }
    }

    /// Closes what workers have closed, what stayed unused between two sweeps, and what belongs to
    /// workers that are gone.
    pub fn sweep(&self, is_known: impl Fn(u32) -> bool) {
        let last = self.sweeps.get();
        self.sweeps.set(last.wrapping_add(1));
        self.idle.borrow_mut().retain(|&worker, idle| {
            idle.retain_mut(|upstream| upstream.idle_since_sweep == last && upstream.is_ready());
            is_known(worker) && !idle.is_empty()
        });
    }
}
