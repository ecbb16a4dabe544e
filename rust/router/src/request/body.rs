//! Bodies in both directions.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::fleet::worker::LoadGuard;
use crate::front::client::{Client, Phase};
use crate::policy::Receipt;
use crate::request::exchange::{End, Exchange};
use crate::request::upstream::Upstream;
use crate::runtime::clock;
use crate::runtime::lane::Lane;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body as far as it was read before forwarding, and the rest.
pub struct Upload {
    pub read: Bytes,
    /// What came behind it.
    trailers: Option<HeaderMap>,
    /// What still has to come from the client; a request with a rest can be sent only once.
    pub rest: Option<Rest>,
    is_whole: bool,
}

/// The part of a body that goes straight from the client to the worker, up to a limit.
pub struct Rest {
    incoming: Incoming,
    client: Arc<Client>,
    budget: u64,
    fault: Rc<Cell<Option<Fault>>>,
}

/// What a client did wrong with the part of a body that was already on its way to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    TooLarge,
    Stalled,
    Left,
}

pub enum ReadError {
    /// With what is left of it.
    TooLarge(Incoming),
    Stalled,
    Client(hyper::Error),
}

/// The next piece of a client's body; an error if the client has not sent any for too long.
fn poll_client(
    incoming: &mut Incoming,
    client: &Client,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ReadError>>> {
    match Pin::new(incoming).poll_frame(cx) {
        Poll::Pending if client.phase() == Phase::Body && client.is_late() => {
            client.enters(Phase::Busy);
            Poll::Ready(Some(Err(ReadError::Stalled)))
        }
        Poll::Pending => {
            client.stays_in(Phase::Body);
            Poll::Pending
        }
        Poll::Ready(frame) => {
            client.stays_in(Phase::Busy);
            Poll::Ready(frame.map(|frame| frame.map_err(ReadError::Client)))
        }
    }
}

impl Upload {
    /// Reads up to `window` bytes of a body that may have `limit` at most.
    pub async fn read(
        mut incoming: Incoming,
        client: Arc<Client>,
        window: usize,
        limit: u64,
    ) -> Result<Upload, ReadError> {
        let mut read = Pieces::default();
        let mut trailers = None;
        let expected = incoming
            .size_hint()
            .upper()
            .map_or(window, |upper| upper.min(window as u64) as usize);
        while !incoming.is_end_stream() && read.len() < window {
            match std::future::poll_fn(|cx| poll_client(&mut incoming, &client, cx)).await {
                None => {
                    return Ok(Upload {
                        read: read.join(),
                        trailers,
                        rest: None,
                        is_whole: true,
                    });
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => read.push(data, expected),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
            }
            if read.len() as u64 > limit {
                return Err(ReadError::TooLarge(incoming));
            }
        }
        let budget = limit - read.len() as u64;
        let rest = (!incoming.is_end_stream()).then(|| Rest {
            incoming,
            client,
            budget,
            fault: Rc::default(),
        });
        Ok(Upload {
            read: read.join(),
            trailers,
            is_whole: rest.is_none(),
            rest,
        })
    }

    /// Tells what was wrong with the rest, once that has turned out.
    pub fn fault(&self) -> Rc<Cell<Option<Fault>>> {
        self.rest
            .as_ref()
            .map_or_else(Rc::default, |rest| rest.fault.clone())
    }

    /// Whether the whole body is at hand, to be sent again if need be.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The body for one attempt. It takes the rest with it.
    pub fn take(&mut self) -> RequestBody {
        RequestBody {
            read: Some(self.read.clone()).filter(|read| !read.is_empty()),
            trailers: self.trailers.clone(),
            rest: self.rest.take(),
        }
    }
}

/// Reads on what was refused, for a while: a client that is still sending would otherwise be reset before
/// it has read why.
pub async fn discard(mut incoming: Incoming) {
    const AT_MOST: usize = 64 << 20;
    let reading = async {
        let mut read = 0;
        while let Some(Ok(frame)) =
            std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await
        {
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > AT_MOST {
                return;
            }
        }
    };
    // Time over is as good as done.
    let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
}

/// Chunks collected without copying where there is only one.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    joined: BytesMut,
}

impl Pieces {
    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn push(&mut self, data: Bytes, expected: usize) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.joined.is_empty() {
            self.joined
                .reserve(expected.max(self.first.len() + data.len()));
            self.joined
                .extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&data);
    }

    fn join(self) -> Bytes {
        if self.joined.is_empty() {
            self.first
        } else {
            self.joined.freeze()
        }
    }
}

/// What is sent to a worker: bytes at hand, then the rest as it comes.
pub struct RequestBody {
    read: Option<Bytes>,
    trailers: Option<HeaderMap>,
    rest: Option<Rest>,
}

impl RequestBody {
    pub fn empty() -> Self {
        RequestBody::whole(Bytes::new())
    }

    pub fn whole(body: Bytes) -> Self {
        RequestBody {
            read: Some(body).filter(|body| !body.is_empty()),
            trailers: None,
            rest: None,
        }
    }

    pub fn into_rest(self) -> Option<Rest> {
        self.rest
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(read) = self.read.take() {
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        let Some(rest) = &mut self.rest else {
            let trailers = self.trailers.take().map(Frame::trailers);
            return Poll::Ready(trailers.map(Ok));
        };
        let frame = std::task::ready!(poll_client(&mut rest.incoming, &rest.client, cx));
        let fault = match frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                match rest.budget.checked_sub(bytes) {
                    Some(left) => {
                        rest.budget = left;
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    None => Fault::TooLarge,
                }
            }
            Some(Err(ReadError::Client(_))) => Fault::Left,
            Some(Err(_)) => Fault::Stalled,
            None => return Poll::Ready(None),
        };
        rest.fault.set(Some(fault));
        Poll::Ready(Some(Err("the client's body ended early".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none()
            && self.trailers.is_none()
            && self
                .rest
                .as_ref()
                .is_none_or(|rest| rest.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.as_ref().map_or(0, |read| read.len() as u64);
        let rest = self
            .rest
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), |rest| rest.incoming.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(read + rest.lower());
        // Trailers go behind chunks only.
        if let Some(upper) = rest.upper().filter(|_| self.trailers.is_none()) {
            hint.set_upper(read + upper);
        }
        hint
    }
}

/// A worker's answer on its way to the client. It owns the connection it comes from: reading the body
/// drives that connection in the same task, everything already received leaves in one write, and a client
/// that goes away closes it, which is how the worker learns of it.
pub struct ResponseBody {
    incoming: Incoming,
    upstream: Option<Box<Upstream>>,
    lane: Rc<Lane>,
    finished: bool,
    /// Trailers or an error that came right behind data.
    next: Option<Result<Frame<Bytes>, BoxError>>,
    /// Whether what came before an error has had its chance to leave.
    is_flushed: bool,
    load: LoadGuard,
    /// Where the policy is told how much of the prompt the worker had cached.
    receipt: Option<Receipt>,
}

/// Chunks that have already arrived leave as one, up to this many bytes: an event of a stream is often
/// shorter than what it costs to pass it on alone.
const COALESCED: usize = 64 << 10;

impl ResponseBody {
    /// `upstream` is None where something else drives the connection.
    pub fn new(
        incoming: Incoming,
        upstream: Option<Box<Upstream>>,
        lane: Rc<Lane>,
        load: LoadGuard,
    ) -> Self {
        ResponseBody {
            incoming,
            upstream,
            lane,
            finished: false,
            next: None,
            is_flushed: false,
            load,
            receipt: None,
        }
    }

    /// Has the policy told of the answer's usage at its end, if it wants to know.
    pub fn reading_usage(mut self, receipt: Receipt) -> Self {
        if let Some(upstream) = &mut self.upstream
            && self.lane.shared.policy.reads_usage()
        {
            upstream.tail.clear();
            self.receipt = Some(receipt);
        }
        self
    }
}

impl ResponseBody {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut frame = Pin::new(&mut self.incoming).poll_frame(cx);
        if frame.is_pending()
            && let Some(upstream) = &mut self.upstream
        {
            upstream.drive(cx);
            frame = Pin::new(&mut self.incoming).poll_frame(cx);
        }
        match &frame {
            Poll::Ready(Some(Ok(_))) => self.load.worker().standing.hear(clock::now()),
            Poll::Ready(None) => self.finished = true,
            _ => {}
        }
        frame.map_err(Into::into)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(next) = this.next.take() {
            if next.is_err() && !std::mem::replace(&mut this.is_flushed, true) {
                // hyper drops what it has not written yet once it meets an error. It writes when there is
                // nothing to read.
                this.next = Some(next);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(Some(next));
        }
        if this.finished {
            return Poll::Ready(None);
        }
        let first = match std::task::ready!(this.poll_next(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            },
            Some(Err(error)) => {
                this.next = Some(Err(error));
                return self.poll_frame(cx);
            }
            None => return Poll::Ready(None),
        };
        let mut pieces = Pieces::default();
        pieces.push(first, 0);
        while pieces.len() < COALESCED {
            match this.poll_next(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => pieces.push(data, 2048),
                    Err(trailers) => this.next = Some(Ok(trailers)),
                },
                Poll::Ready(Some(Err(error))) => this.next = Some(Err(error)),
                Poll::Ready(None) | Poll::Pending => break,
            }
            if this.next.is_some() {
                break;
            }
        }
        let data = pieces.join();
        if let (Some(_), Some(upstream)) = (this.receipt, &mut this.upstream) {
            upstream.tail.push(&data);
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && (self.finished || self.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if (self.finished || self.incoming.is_end_stream())
            && let Some(upstream) = self.upstream.take()
        {
            if let Some(receipt) = self.receipt
                && let Some(usage) = upstream.tail.usage()
            {
                let policy = &self.lane.shared.policy;
                policy.answered(self.load.worker(), receipt, usage);
            }
            self.lane.pool.put_back(upstream);
        }
    }
}

pub enum Payload {
    Local(Option<Bytes>),
    Upstream(ResponseBody),
}

/// The body of every answer. Its end is the end of the exchange on the client's connection.
pub struct ReplyBody {
    payload: Payload,
    client: Arc<Client>,
    exchange: Box<Exchange>,
}

impl ReplyBody {
    pub fn new(payload: Payload, client: Arc<Client>, exchange: Box<Exchange>) -> Self {
        ReplyBody {
            payload,
            client,
            exchange,
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.client.enters(Phase::Idle);
        if self.is_end_stream() || self.exchange.is_bodiless() {
            self.exchange.ends(End::Complete);
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match &mut self.payload {
            Payload::Local(bytes) => bytes.take().map(|bytes| Ok(Frame::data(bytes))),
            Payload::Upstream(body) => std::task::ready!(Pin::new(body).poll_frame(cx)),
        };
        match &frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let is_last = self.is_end_stream();
                self.exchange.passes(bytes, is_last);
            }
            Some(Err(_)) => self.exchange.ends(End::WorkerCut),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.payload {
            Payload::Local(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Payload::Upstream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.payload {
            Payload::Local(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Payload::Upstream(body) => body.size_hint(),
        }
    }
}
