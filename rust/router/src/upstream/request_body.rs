//! The body of a request on its way to a worker: bytes already read, then the rest as the client sends it.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::base::client::{Client, Phase};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The part of a body that goes straight from the client to the worker, up to a limit.
pub struct Rest {
    /// None once `discard` has it.
    incoming: Option<Incoming>,
    client: Arc<Client>,
    floor: u32,
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

pub enum BodyError {
    /// With the rest of the body.
    TooLarge(Incoming),
    Stalled,
    Client(hyper::Error),
    /// The router holds as many bytes of bodies as it may. With the rest of this one.
    Full(Incoming),
}

impl Rest {
    pub fn new(incoming: Incoming, client: Arc<Client>, floor: u32, budget: u64) -> Rest {
        Rest {
            incoming: Some(incoming),
            client,
            floor,
            budget,
            fault: Rc::default(),
        }
    }

    /// The cell that gets the client's fault, if there turns out to be one.
    pub fn fault(&self) -> Rc<Cell<Option<Fault>>> {
        self.fault.clone()
    }
}

/// The next piece of a client's body, or an error if the client has sent nothing for too long.
pub fn poll_client(
    incoming: &mut Incoming,
    client: &Client,
    floor: u32,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    match Pin::new(incoming).poll_frame(cx) {
        Poll::Pending if client.phase() == Phase::Body && client.is_late() => {
            client.enter(Phase::Busy);
            Poll::Ready(Some(Err(BodyError::Stalled)))
        }
        Poll::Pending => {
            client.stay_in(Phase::Body);
            Poll::Pending
        }
        Poll::Ready(frame) => {
            if let Some(Ok(frame)) = &frame {
                client.count_received(frame.data_ref().map_or(0, Bytes::len), floor);
            }
            client.stay_in(Phase::Busy);
            Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Client)))
        }
    }
}

/// How many refused bodies a lane reads at once. The connections of more are closed at once.
const MOST_DISCARDED: usize = 256;

thread_local! {
    static DISCARDED: Cell<usize> = const { Cell::new(0) };
}

/// Counts a refused body that is being read.
struct Discarding;

impl Discarding {
    fn begin() -> Option<Discarding> {
        let count = DISCARDED.get();
        (count < MOST_DISCARDED).then(|| {
            DISCARDED.set(count + 1);
            Discarding
        })
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        DISCARDED.set(DISCARDED.get() - 1);
    }
}

/// Goes on reading a refused body for a while. Otherwise a client that is still sending would be reset before it has
/// read why.
pub async fn discard(mut incoming: Incoming) {
    const AT_MOST: usize = 64 << 20;
    let Some(_discarding) = Discarding::begin() else {
        return;
    };
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
    // It does not matter whether it ended or its time ran out.
    let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
}

impl Drop for Rest {
    /// A worker may answer without reading all of a body; its client, still sending, must get that answer.
    fn drop(&mut self) {
        if self.fault.get().is_none()
            && let Some(incoming) = self.incoming.take()
            && !incoming.is_end_stream()
        {
            tokio::task::spawn_local(discard(incoming));
        }
    }
}

pub struct RequestBody {
    read: Option<Bytes>,
    trailers: Option<HeaderMap>,
    rest: Option<Rest>,
}

impl RequestBody {
    pub fn empty() -> Self {
        RequestBody::whole(Bytes::new())
    }

    pub fn new(read: Bytes, trailers: Option<HeaderMap>, rest: Option<Rest>) -> Self {
        RequestBody {
            read: Some(read).filter(|read| !read.is_empty()),
            trailers,
            rest,
        }
    }

    pub fn whole(body: Bytes) -> Self {
        RequestBody::new(body, None, None)
    }

    pub fn into_rest(self) -> Option<Rest> {
        self.rest
    }

    fn incoming(&self) -> Option<&Incoming> {
        self.rest.as_ref()?.incoming.as_ref()
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
        let Some(incoming) = &mut rest.incoming else {
            return Poll::Ready(None);
        };
        let frame = std::task::ready!(poll_client(incoming, &rest.client, rest.floor, cx));
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
            Some(Err(BodyError::Client(_))) => Fault::Left,
            Some(Err(_)) => Fault::Stalled,
            None => return Poll::Ready(None),
        };
        rest.fault.set(Some(fault));
        Poll::Ready(Some(Err("the client's body ended early".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none()
            && self.trailers.is_none()
            && self.incoming().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.as_ref().map_or(0, |read| read.len() as u64);
        let rest = self
            .incoming()
            .map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(read + rest.lower());
        // Trailers can follow chunks only, so the length must stay unknown.
        if let Some(upper) = rest.upper().filter(|_| self.trailers.is_none()) {
            hint.set_upper(read + upper);
        }
        hint
    }
}
