//! A connection to a worker, which only the request that holds it polls.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper::header::HeaderName;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use socket2::SockRef;

use crate::base::clock::{self, Tick};
use crate::base::fault_point::fault_point;
use crate::base::stream::{KEEPALIVE, Stream, limit_unacknowledged};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::idle::{IdleStream, is_quiet};
use crate::upstream::request_body::RequestBody;
use crate::upstream::tail::Tail;
use crate::upstream::trust::Trust;

/// Longer than the limit for connecting: the worker's kernel accepts a connection, but the TLS handshake needs the
/// worker itself, which may be busy.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The kernel gives up a host that vanished silently after this long.
const GONE_AFTER: Duration = Duration::from_secs(60);

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

type Connection = http1::Connection<TokioIo<Stream>, RequestBody>;
pub type Sender = http1::SendRequest<RequestBody>;

/// Boxed wherever it is passed on: a connection's state is most of a KiB.
pub struct Upstream {
    sender: Sender,
    /// None once it has ended.
    connection: Option<Connection>,
    /// The connection's socket, open as long as `connection` is there.
    socket: RawFd,
    pub endpoint: Arc<Endpoint>,
    /// True if it has waited for this request. Then the worker may have closed it in the meantime.
    pub reused: bool,
    /// Since when it waits for a request, and for how long it waited for the last one.
    pub idle_since: Tick,
    pub waited: Tick,
    /// The last bytes of its current answer, if usage is read from them.
    pub tail: Tail,
}

/// Opens a connection, which the caller must drive, and returns it with its socket. `limit` is for TCP alone; TLS has
/// `HANDSHAKE_TIMEOUT`.
pub async fn connect(
    endpoint: &Endpoint,
    trust: &Trust,
    limit: Duration,
) -> io::Result<(Sender, Connection, RawFd)> {
    let stream = within(limit, "connection", endpoint.address.connect()).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    limit_unacknowledged(&socket, GONE_AFTER)?;
    let stream = match endpoint.certified_as.clone() {
        None => Stream::Plain(stream),
        Some(name) => {
            // Boxed, so that requests without TLS reserve no room for it.
            let secured = Box::pin(trust.secure(name, stream));
            within(HANDSHAKE_TIMEOUT, "TLS", secured).await?
        }
    };
    begin(stream).await
}

/// Begins to speak HTTP on a stream.
async fn begin(stream: Stream) -> io::Result<(Sender, Connection, RawFd)> {
    let socket = stream.socket().as_raw_fd();
    let (sender, connection) = http1::Builder::new()
        .preserve_header_case(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    Ok((sender, connection, socket))
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
        endpoint: &Arc<Endpoint>,
        trust: &Trust,
        limit: Duration,
    ) -> io::Result<Box<Upstream>> {
        let opened = connect(endpoint, trust, limit).await?;
        Ok(Upstream::new(opened, endpoint))
    }

    fn new(
        (sender, connection, socket): (Sender, Connection, RawFd),
        endpoint: &Arc<Endpoint>,
    ) -> Box<Upstream> {
        Box::new(Upstream {
            sender,
            connection: Some(connection),
            socket,
            endpoint: endpoint.clone(),
            reused: false,
            idle_since: 0,
            waited: Tick::MAX,
            tail: Tail::default(),
        })
    }

    /// Goes on with a connection that any lane may have used before.
    pub async fn resume(idle: IdleStream, endpoint: &Arc<Endpoint>) -> io::Result<Box<Upstream>> {
        let waited = clock::now().saturating_sub(idle.since);
        let begun = begin(idle.into_stream()?).await?;
        let mut upstream = Upstream::new(begun, endpoint);
        (upstream.reused, upstream.waited) = (true, waited);
        Ok(upstream)
    }

    /// Leaves an idle connection to all lanes.
    pub fn share(self) {
        let Some(connection) = self.connection else {
            return;
        };
        let parts = connection.into_parts();
        if parts.read_buf.is_empty() {
            let idle = IdleStream::new(parts.io.into_inner(), self.idle_since);
            self.endpoint.idle.put(idle);
        }
    }

    /// Sends a request and waits for the head of the answer, which may say how long the worker keeps connections.
    pub async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let connection = &mut self.connection;
        let response = poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            drive(connection, cx);
            answer.as_mut().poll(cx)
        })
        .await?;
        if let Some(keep_alive) = response.headers().get(KEEP_ALIVE) {
            self.endpoint.idle.announced(keep_alive.as_bytes());
        }
        Ok(response)
    }

    /// Sends a client's request and waits for the answer's head. With `for_bytes` it waits for the first bytes of a
    /// stream too: servers send a stream's head before they have computed anything.
    pub async fn ask(
        &mut self,
        request: Request<RequestBody>,
        for_bytes: bool,
    ) -> Result<Response<Begun>, NoAnswer> {
        if let Some(fault) = fault_point("router.send")
            && let Err(error) = fault.await
        {
            let (unsent, why) = (Some(request), error.to_string());
            return Err(NoAnswer { unsent, why });
        }
        let response = self.send(request).await.map_err(|mut error| NoAnswer {
            unsent: error.take_message(),
            why: error_text(error.error()),
        })?;
        if let Some(fault) = fault_point("router.head")
            && let Err(error) = fault.await
        {
            let (unsent, why) = (None, error.to_string());
            return Err(NoAnswer { unsent, why });
        }
        let (parts, incoming) = response.into_parts();
        let mut body = Begun::from(incoming);
        if for_bytes && parts.status.is_success() && body.incoming.size_hint().exact().is_none() {
            body.first = match poll_fn(|cx| self.poll_frame(&mut body.incoming, cx)).await {
                Some(Ok(frame)) => Some(Box::new(frame)),
                Some(Err(error)) => {
                    return Err(NoAnswer {
                        unsent: None,
                        why: error_text(&error),
                    });
                }
                None => {
                    body.is_over = true;
                    None
                }
            };
        }
        Ok(Response::from_parts(parts, body))
    }

    /// The next piece of an answer on this connection.
    pub fn poll_frame(
        &mut self,
        incoming: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Pending => {
                self.drive(cx);
                Pin::new(incoming).poll_frame(cx)
            }
            ready => ready,
        }
    }

    /// Moves bytes in both directions as far as they go without waiting.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.connection, cx);
    }

    /// Whether another request can be sent on it right now.
    pub fn is_ready(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.sender.is_ready()
    }

    /// True if a kept connection can carry one more request. If it has waited for a while, the kernel is asked too.
    pub fn is_alive(&mut self) -> bool {
        let idle = &self.endpoint.clone().idle;
        let is_open = self.is_ready() && (self.waited == 0 || is_quiet(&self.socket()));
        if !is_open {
            idle.closed_after(self.waited);
        }
        is_open && idle.is_trusted(self.waited)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `connection` is there, which `is_ready` has found.
        unsafe { BorrowedFd::borrow_raw(self.socket) }
    }
}

/// The body of an answer, whose first piece may have been read already.
pub struct Begun {
    pub incoming: Incoming,
    pub first: Option<Box<Frame<Bytes>>>,
    /// Whether it turned out to be empty.
    pub is_over: bool,
}

impl From<Incoming> for Begun {
    fn from(incoming: Incoming) -> Begun {
        Begun {
            incoming,
            first: None,
            is_over: false,
        }
    }
}

/// Why an answer did not begin.
pub struct NoAnswer {
    /// The request, if certainly nothing of it was sent.
    pub unsent: Option<Request<RequestBody>>,
    pub why: String,
}

/// The error with what caused it.
pub fn error_text(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn drive(connection: &mut Option<Connection>, cx: &mut Context<'_>) {
    if let Some(open) = connection
        && Pin::new(open).poll(cx).is_ready()
    {
        // Dropping it hands its error, or the unsent request, to the future that waits for the answer.
        *connection = None;
    }
}

/// Whether a connection failed because this process lacks descriptors, ports or memory.
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::EADDRNOTAVAIL | libc::ENOBUFS | libc::ENOMEM)
    )
}
