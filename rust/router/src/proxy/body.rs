//! The body of every answer on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::base::client::{Client, Phase};
use crate::base::end::End;
use crate::proxy::payload::Payload;
use crate::proxy::record::RequestRecord;
use crate::upstream::request_body::BoxError;

/// The body of every answer. The request ends with it.
pub struct ReplyBody {
    payload: Payload,
    client: Arc<Client>,
    record: Box<RequestRecord>,
}

impl ReplyBody {
    pub fn new(payload: Payload, client: Arc<Client>, record: Box<RequestRecord>) -> Self {
        ReplyBody {
            payload,
            client,
            record,
        }
    }

    /// Ends a worker's answer before it is whole. The request is over, but on an error hyper drops what it has not
    /// written yet, and it writes when there is nothing to read: so the client gets the error behind all the rest.
    fn break_off(&mut self, end: End, error: BoxError, cx: &Context<'_>) {
        self.record.set_end(end);
        self.record.release();
        self.client.mark_answered();
        self.payload = Payload::Broken(Some(error));
        cx.waker().wake_by_ref();
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.client.mark_answered();
        self.client.enter(Phase::Idle);
        if self.is_end_stream() || self.record.is_bodiless() {
            self.record.set_end(End::Complete);
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
        let this = &mut *self;
        let frame = match &mut this.payload {
            Payload::Local(bytes) => bytes.take().map(|bytes| Ok(Frame::data(bytes))),
            Payload::Page(page) => match Pin::new(page).poll_frame(cx) {
                Poll::Ready(frame) => frame.map(|frame| frame.map_err(|never| match never {})),
                Poll::Pending => return Poll::Pending,
            },
            Payload::Broken(_) if this.client.is_behind() => return Poll::Pending,
            Payload::Broken(error) => error.take().map(Err),
            Payload::Upstream(body) => match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Err(error))) => {
                    this.break_off(End::WorkerCut, error, cx);
                    return Poll::Pending;
                }
                Poll::Ready(frame) => {
                    this.client.mark_answered();
                    frame
                }
                Poll::Pending if this.client.phase() == Phase::Answer && this.client.is_late() => {
                    let why = "the worker sent nothing more in time";
                    this.break_off(End::IdleTimeout, why.into(), cx);
                    return Poll::Pending;
                }
                Poll::Pending => {
                    this.client.await_answer();
                    return Poll::Pending;
                }
            },
        };
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let is_last = this.is_end_stream();
            this.record.count_sent(bytes, is_last);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.payload {
            Payload::Local(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Payload::Page(page) => page.is_end_stream(),
            Payload::Upstream(body) => body.is_end_stream(),
            Payload::Broken(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.payload {
            Payload::Local(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Payload::Page(page) => page.size_hint(),
            Payload::Upstream(body) => body.size_hint(),
            Payload::Broken(_) => SizeHint::default(),
        }
    }
}
