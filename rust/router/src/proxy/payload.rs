//! What an answer's body is made of: a worker's, as it comes, or a text of the router itself.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use sglang_omni_policy::Receipt;

use crate::base::clock::{self, Tick};
use crate::base::fault_point::{PolledPoint, passes};
use crate::base::page::PageBody;
use crate::fleet::worker::LoadGuard;
use crate::proxy::lane::Lane;
use crate::proxy::pieces::Pieces;
use crate::proxy::usage;
use crate::upstream::connection::{Begun, Upstream};
use crate::upstream::request_body::BoxError;

/// A worker's answer on its way to the client. It owns the worker's connection: reading the body drives that connection
/// in the same task, and everything already received leaves in one write. If the client leaves, the connection closes,
/// so that the worker stops.
pub struct ResponseBody {
    incoming: Incoming,
    /// The first piece, if it was waited for.
    first: Option<Box<Frame<Bytes>>>,
    upstream: Option<Box<Upstream>>,
    lane: Rc<Lane>,
    finished: bool,
    /// Trailers or an error that came right behind data.
    next: Option<Result<Frame<Bytes>, BoxError>>,
    load: LoadGuard,
    /// Present if the policy wants to know how much of the prompt the worker had cached.
    receipt: Option<Receipt>,
    /// Since when the client waits for the worker to send more; None if it does not.
    waits_since: Option<Tick>,
    point: PolledPoint,
}

/// Chunks that have already arrived leave as one, up to this many bytes: passing on an event of a stream alone often
/// costs more than the event is long.
const COALESCED: usize = 64 << 10;

impl ResponseBody {
    /// `upstream` is None if something else drives the connection.
    pub fn new(
        body: Begun,
        upstream: Option<Box<Upstream>>,
        lane: Rc<Lane>,
        load: LoadGuard,
    ) -> Self {
        ResponseBody {
            incoming: body.incoming,
            first: body.first,
            upstream,
            lane,
            finished: body.is_over,
            next: None,
            load,
            receipt: None,
            waits_since: None,
            point: PolledPoint::default(),
        }
    }

    /// Reports the answer's usage to the policy at the end, if the policy wants to know.
    pub fn reading_usage(mut self, receipt: Option<Receipt>) -> Self {
        if let Some(upstream) = &mut self.upstream
            && self.lane.proxy.policy.reads_usage()
        {
            upstream.tail.clear();
            self.receipt = receipt;
        }
        self
    }

    /// The client has got all that came, and waits for more.
    fn begin_wait(&mut self) {
        if self.waits_since.is_none() {
            self.waits_since = Some(clock::now());
            self.lane.awaited.begin(self.load.worker());
        }
    }

    fn end_wait(&mut self) -> Option<Tick> {
        let since = self.waits_since.take()?;
        self.lane.awaited.end(self.load.worker());
        Some(since)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(*first)));
        }
        if let Err(error) = ready!(self.point.poll("router.body", cx)) {
            return Poll::Ready(Some(Err(error.into())));
        }
        let frame = match &mut self.upstream {
            Some(upstream) => upstream.poll_frame(&mut self.incoming, cx),
            None => Pin::new(&mut self.incoming).poll_frame(cx),
        };
        match &frame {
            Poll::Ready(Some(Ok(_))) => {
                let (waited, now) = (self.end_wait(), clock::now());
                self.load.worker().sent_of_stream(waited, now);
            }
            Poll::Ready(None) => self.finished = true,
            _ => {}
        }
        if frame.is_ready() {
            self.point.again();
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
            return Poll::Ready(Some(next));
        }
        if this.finished {
            return Poll::Ready(None);
        }
        let polled = this.poll_next(cx);
        if polled.is_pending() {
            this.begin_wait();
        }
        let first = match ready!(polled) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            },
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
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
        let is_read = self.next.is_none() && self.first.is_none();
        is_read && (self.finished || self.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.end_wait();
        if (self.finished || self.incoming.is_end_stream())
            && let Some(upstream) = self.upstream.take()
        {
            if let Some(receipt) = self.receipt
                && let Some(usage) = usage::read(upstream.tail.bytes())
            {
                let policy = &self.lane.proxy.policy;
                policy.answered(receipt, usage);
            }
            if passes("router.tail") {
                self.lane.pool.put_back(upstream);
            }
        }
    }
}

pub enum Payload {
    Local(Option<Bytes>),
    Page(PageBody),
    Upstream(ResponseBody),
    /// The error with which a worker's answer has ended.
    Broken(Option<BoxError>),
}
