//! Reads HTTP/1.1 messages from a socket: a head, then a body in pieces.

use std::io::{Error, ErrorKind, Result};

use memchr::{memchr, memmem};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The most one read takes, and so the largest head.
const BUFFER: usize = 256 << 10;

pub struct MessageReader<S> {
    stream: S,
    /// Bytes that have arrived and were not read yet.
    read: Vec<u8>,
}

/// The first line of a message, and the framing of its body.
pub struct Head {
    pub line: String,
    length: Length,
}

#[derive(Clone, Copy, PartialEq)]
enum Length {
    Bytes(usize),
    Chunked,
}

impl<S: AsyncRead + Unpin> MessageReader<S> {
    pub fn new(stream: S) -> Self {
        MessageReader {
            stream,
            read: Vec::with_capacity(BUFFER),
        }
    }

    async fn fill(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The next message's head; None if the connection ends before one.
    pub async fn head(&mut self) -> Result<Option<Head>> {
        let end = loop {
            if let Some(end) = memmem::find(&self.read, b"\r\n\r\n") {
                break end;
            }
            match self.fill().await {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && self.read.is_empty() => {
                    return Ok(None);
                }
                filled => filled?,
            }
        };
        let mut lines = self.read[..end].split(|&byte| byte == b'\n');
        let line = String::from_utf8_lossy(lines.next().unwrap_or_default())
            .trim_end()
            .to_owned();
        let mut length = Length::Bytes(0);
        for header in lines {
            if let Some(value) = value_of(header, b"content-length:") {
                let parsed = std::str::from_utf8(value)
                    .ok()
                    .and_then(|value| value.trim().parse().ok());
                length = Length::Bytes(parsed.ok_or_else(|| Error::other("not a Content-Length"))?);
            } else if value_of(header, b"transfer-encoding:").is_some() {
                length = Length::Chunked;
                break;
            }
        }
        self.read.drain(..end + 4);
        Ok(Some(Head { line, length }))
    }

    /// Passes the body that belongs to `head` to the callback, piece by piece.
    pub async fn body(&mut self, head: &Head, mut piece: impl FnMut(&[u8])) -> Result<()> {
        match head.length {
            Length::Bytes(length) => self.bytes(length, &mut piece).await,
            Length::Chunked => loop {
                let length = self.chunk_length().await?;
                self.bytes(length, &mut piece).await?;
                self.line_end().await?;
                if length == 0 {
                    return Ok(());
                }
            },
        }
    }

    async fn bytes(&mut self, mut length: usize, piece: &mut impl FnMut(&[u8])) -> Result<()> {
        while length > 0 {
            if self.read.is_empty() {
                self.fill().await?;
            }
            let here = length.min(self.read.len());
            piece(&self.read[..here]);
            self.read.drain(..here);
            length -= here;
        }
        Ok(())
    }

    async fn chunk_length(&mut self) -> Result<usize> {
        let end = loop {
            if let Some(end) = memchr(b'\n', &self.read) {
                break end;
            }
            self.fill().await?;
        };
        let digits = std::str::from_utf8(&self.read[..end]).unwrap_or_default();
        let length = usize::from_str_radix(digits.trim(), 16)
            .map_err(|_| Error::other(format!("{digits:?} is not a chunk's length")))?;
        self.read.drain(..=end);
        Ok(length)
    }

    async fn line_end(&mut self) -> Result<()> {
        while self.read.len() < 2 {
            self.fill().await?;
        }
        self.read.drain(..2);
        Ok(())
    }
}

fn value_of<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = header.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bodies and first lines of all messages in `bytes`.
    fn read(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(async {
            let mut reader = MessageReader::new(bytes);
            let mut messages = Vec::new();
            while let Some(head) = reader.head().await? {
                let mut body = Vec::new();
                reader
                    .body(&head, |piece| body.extend_from_slice(piece))
                    .await?;
                messages.push((head.line, body));
            }
            Ok(messages)
        })
    }

    #[test]
    fn bodies_end_where_their_heads_say() {
        let messages = read(
            b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nhost: x\r\n\r\n\
              HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
        );
        let expected = [
            ("POST /a HTTP/1.1", "hello"),
            ("GET /b HTTP/1.1", ""),
            ("HTTP/1.1 200 OK", "abc0123456789"),
        ];
        let expected = expected.map(|(line, body)| (line.to_owned(), body.as_bytes().to_vec()));
        assert_eq!(messages.unwrap(), expected);
    }

    #[test]
    fn what_ends_too_early_is_an_error() {
        for bytes in [
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: three\r\n\r\n",
        ] {
            assert!(read(bytes.as_bytes()).is_err(), "{bytes:?}");
        }
    }
}
