//! A TCP connection with or without TLS.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Socket, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// When and how often a silent host is asked whether it is still there.
pub const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5));

/// Ends a connection whose other host has not acknowledged data for this long. Only Linux has such a limit.
#[cfg(target_os = "linux")]
pub fn limit_unacknowledged(socket: &Socket, limit: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(limit))
}

#[cfg(not(target_os = "linux"))]
pub fn limit_unacknowledged(_: &Socket, _: Duration) -> io::Result<()> {
    Ok(())
}

/// Bounds what the kernel holds of the data that it has not sent to the other host yet.
#[cfg(target_os = "linux")]
pub fn limit_not_sent(socket: &Socket, bytes: u32) -> io::Result<()> {
    socket.set_tcp_notsent_lowat(bytes)
}

#[cfg(not(target_os = "linux"))]
pub fn limit_not_sent(_: &Socket, _: u32) -> io::Result<()> {
    Ok(())
}

/// A connection to a client or to a worker.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Has the calling thread's runtime watch the socket, instead of the one that does.
    pub fn rehome(self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Plain(stream) => Stream::Plain(TcpStream::from_std(stream.into_std()?)?),
            Stream::Tls(mut stream) => {
                // TLS does not give its socket away; a second descriptor takes the first one's place.
                let socket = stream.get_mut().0;
                let second = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
                *socket = TcpStream::from_std(second)?;
                Stream::Tls(stream)
            }
        })
    }

    /// The TCP socket below.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// Calls a function of the stream that there is.
macro_rules! on_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Tls(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }
}
