//! A client's connection as hyper reads and writes it: notes what moves on it, and gives hyper's own error answers
//! OpenAI's form.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, SystemTime};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::base::client::{Client, Phase};
use crate::base::fault_point::PolledPoint;
use crate::base::stream::Stream;
use crate::front::unsent::Unsent;
use crate::proxy::reply::{Reason, error_body};

pub struct ClientIo {
    stream: Stream,
    client: Arc<Client>,
    unsent: Unsent,
    point: PolledPoint,
}

impl ClientIo {
    pub fn new(stream: Stream, client: Arc<Client>, unsent: Unsent) -> Self {
        ClientIo {
            stream,
            client,
            unsent,
            point: PolledPoint::default(),
        }
    }

    /// True if what the client does not take is held here: during an answer, for a slow client. Between answers only its
    /// own next request waits, and an upgraded connection goes at the pace of its slower side.
    fn holds(&self) -> bool {
        self.client.is_slow() && !matches!(self.client.phase(), Phase::Idle | Phase::Head)
    }

    /// Sends what was held; ready once that is done.
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let Self {
                stream,
                point,
                unsent,
                ..
            } = self;
            let sent = ready!(poll_write(stream, point, cx, &unsent.slices()))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.advance(sent);
            self.client.count_taken(sent);
            self.client.set_unread(self.unsent.len());
        }
        Poll::Ready(Ok(()))
    }

    /// Writes behind all that was written before. What a slow client cannot take of an answer is held, as far as
    /// there is room.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.poll_unsent(cx)?.is_ready() {
            let written = poll_write(&mut self.stream, &mut self.point, cx, bufs);
            if let Poll::Ready(written) = written {
                self.client.count_taken(*written.as_ref().unwrap_or(&0));
                return Poll::Ready(written);
            }
        }
        self.client.mark_behind();
        let held = match self.holds() {
            true => self.unsent.take_in(bufs),
            false => 0,
        };
        self.client.set_unread(self.unsent.len());
        match held {
            0 => Poll::Pending,
            held => Poll::Ready(Ok(held)),
        }
    }
}

/// Writes to a client, behind the point at which tests have that fail.
fn poll_write(
    stream: &mut Stream,
    point: &mut PolledPoint,
    cx: &mut Context<'_>,
    bufs: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    ready!(point.poll("router.client", cx))?;
    let written = Pin::new(stream).poll_write_vectored(cx, bufs);
    if written.is_ready() {
        point.again();
    }
    written
}

/// A whole HTTP response that closes the connection.
fn refusal(reason: Reason, message: &str) -> String {
    let (status, body) = (reason.status(), error_body(reason, message));
    format!(
        "HTTP/1.1 {status}\r\ndate: {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        httpdate::fmt_http_date(SystemTime::now()),
        body.len()
    )
}

/// The same refusal with a body, if these bytes are hyper's answer to a head that it could not parse.
fn with_body(head: &[u8]) -> Option<String> {
    let code = head
        .strip_prefix(b"HTTP/1.1 4")
        .filter(|_| head.len() < 160 && head.ends_with(b"\r\n\r\n"))?;
    let (reason, message) = match code.get(..2)? {
        b"14" => (Reason::UriTooLong, "the request target is too long"),
        b"31" => (
            Reason::HeadersTooLarge,
            "the request's headers are too many or too large",
        ),
        b"00" => (Reason::InvalidHttp, "the request is not valid HTTP/1.1"),
        _ => return None,
    };
    Some(refusal(reason, message))
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            match self.client.phase() {
                Phase::Idle => self.client.enter(Phase::Head),
                // A head must be complete in its time, however many bytes of it have come. The reader of a body counts
                // its bytes.
                Phase::Head | Phase::Body | Phase::Busy | Phase::Answer => {}
            }
        }
        outcome
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // In this phase the router has no request, so only hyper itself can be writing.
        if self.client.phase() == Phase::Head
            && let [buf] = bufs
            && let Some(refusal) = with_body(buf)
        {
            // This is the first write into an empty send buffer, where a few hundred bytes always fit.
            let written = self.poll_send(cx, &[io::IoSlice::new(refusal.as_bytes())]);
            return written.map_ok(|_| buf.len());
        }
        self.poll_send(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper calls it when it has nothing more to write.
        if self.poll_unsent(cx)?.is_ready() && Pin::new(&mut self.stream).poll_flush(cx)?.is_ready()
        {
            self.client.mark_caught_up();
            return Poll::Ready(Ok(()));
        }
        self.client.mark_behind();
        // hyper would read no more of the answer before all of this is sent. It calls again in each turn.
        match self.holds() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for ClientIo {
    fn drop(&mut self) {
        if self.client.is_cut() {
            // It fails only if the socket is closed already.
            let _ = SockRef::from(self.stream.socket()).set_linger(Some(Duration::ZERO));
        }
        if self.client.phase() == Phase::Head && self.client.is_late() {
            let text = refusal(
                Reason::RequestTimeout,
                "the request's headers did not arrive in time",
            );
            // If the client does not take even this, nothing is left to do.
            let mut cx = Context::from_waker(Waker::noop());
            let _ = Pin::new(&mut self.stream).poll_write(&mut cx, text.as_bytes());
        }
    }
}
