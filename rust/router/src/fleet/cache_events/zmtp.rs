//! The client's side of ZMTP 3, ZeroMQ's wire protocol (rfc.zeromq.org/spec/23), without encryption: as much as a SUB and a
//! DEALER socket need. Nothing that the other side sends makes it take more memory than a message may have.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A batch of events may have so many bytes: enough for the blocks of a million tokens.
const MAX_MESSAGE: usize = 8 << 20;
const MAX_FRAMES: usize = 8;

/// Larger frames are read one after another, so that many workers together take no more memory than this many frames.
const LARGE: usize = 256 << 10;
static LARGE_FRAMES: Semaphore = Semaphore::const_new(8);

/// How long a handshake, a message that has begun, or a write may take.
const PATIENCE: Duration = Duration::from_secs(10);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

pub struct Socket {
    stream: BufReader<TcpStream>,
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

async fn soon<T>(task: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it took too long");
    timeout(PATIENCE, task).await.map_err(late)?
}

impl Socket {
    /// Greets the other side as a socket of this kind.
    pub async fn greet(stream: TcpStream, kind: &str) -> io::Result<Socket> {
        let mut socket = Socket {
            stream: BufReader::new(stream),
        };
        soon(socket.shake_hands(kind)).await?;
        Ok(socket)
    }

    async fn shake_hands(&mut self, kind: &str) -> io::Result<()> {
        let mut greeting = [0; 64];
        greeting[..12].copy_from_slice(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0");
        greeting[12..16].copy_from_slice(b"NULL");
        let ready = [
            b"\x05READY\x0bSocket-Type",
            &be(kind.len() as u32)[..],
            kind.as_bytes(),
        ]
        .concat();
        self.stream.write_all(&greeting).await?;
        self.send(COMMAND, &ready).await?;

        let mut theirs = [0; 64];
        self.stream.read_exact(&mut theirs[..10]).await?;
        if theirs[0] != 0xff || theirs[9] & 1 == 0 {
            return Err(wrong("this is no ZeroMQ socket"));
        }
        self.stream.read_exact(&mut theirs[10..]).await?;
        if theirs[10] < 3 {
            return Err(wrong("it speaks a version of ZMTP before 3"));
        }
        let mechanism = theirs[12..32].trim_ascii_end();
        let mechanism = mechanism.split(|&byte| byte == 0).next();
        if mechanism != Some(b"NULL") {
            return Err(wrong("it demands encryption or a password"));
        }
        let (flags, body) = self.frame(MAX_MESSAGE).await?;
        match (flags & COMMAND, body.as_slice()) {
            (COMMAND, [5, rest @ ..]) if rest.starts_with(b"READY") => Ok(()),
            (COMMAND, [5, rest @ ..]) if rest.starts_with(b"ERROR") => {
                Err(wrong("it refuses the connection"))
            }
            _ => Err(wrong("it does not greet")),
        }
    }

    /// Sends a message of one or more frames.
    pub async fn message(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        for (place, frame) in frames.iter().enumerate() {
            let more = if place + 1 < frames.len() { MORE } else { 0 };
            soon(self.send(more, frame)).await?;
        }
        Ok(())
    }

    /// The frames of the next message. It may take any time to begin.
    pub async fn next(&mut self) -> io::Result<Vec<Vec<u8>>> {
        loop {
            if self.stream.fill_buf().await?.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it closed the connection",
                ));
            }
            if let Some(message) = soon(self.whole()).await? {
                return Ok(message);
            }
        }
    }

    /// A message that has begun; None if it was a command.
    async fn whole(&mut self) -> io::Result<Option<Vec<Vec<u8>>>> {
        let (mut frames, mut left) = (Vec::new(), MAX_MESSAGE);
        loop {
            let (flags, body) = self.frame(left).await?;
            if flags & COMMAND != 0 {
                // A ping has a time to live and a context, which the pong repeats.
                if let Some(context) = body
                    .strip_prefix(b"\x04PING")
                    .and_then(|rest| rest.get(2..))
                {
                    self.send(COMMAND, &[b"\x04PONG", context].concat()).await?;
                }
                if frames.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            left -= body.len();
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(Some(frames));
            }
            if frames.len() == MAX_FRAMES {
                return Err(wrong(format!("a message of more than {MAX_FRAMES} frames")));
            }
        }
    }

    /// A frame of at most `limit` bytes. Memory is taken as they come.
    async fn frame(&mut self, limit: usize) -> io::Result<(u8, Vec<u8>)> {
        let flags = self.stream.read_u8().await?;
        let length = match flags & LONG {
            0 => u64::from(self.stream.read_u8().await?),
            _ => self.stream.read_u64().await?,
        };
        if length > limit as u64 {
            return Err(wrong(format!("a message of more than {MAX_MESSAGE} bytes")));
        }
        let _turn = match length as usize > LARGE {
            true => LARGE_FRAMES.acquire().await.ok(),
            false => None,
        };
        let mut body = Vec::with_capacity((length as usize).min(LARGE));
        let read = (&mut self.stream)
            .take(length)
            .read_to_end(&mut body)
            .await?;
        if (read as u64) < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((flags, body))
    }

    async fn send(&mut self, flags: u8, body: &[u8]) -> io::Result<()> {
        let frame = match u8::try_from(body.len()) {
            Ok(length) => [&[flags, length][..], body].concat(),
            Err(_) => [
                &[flags | LONG][..],
                &(body.len() as u64).to_be_bytes(),
                body,
            ]
            .concat(),
        };
        self.stream.write_all(&frame).await
    }
}

fn be(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::runtime::Builder;

    use super::*;

    const GREETING: &[u8; 64] =
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    const READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";

    /// What the client makes of a server that sends this, then closes; and what the server gets.
    fn read(sent: &[&[u8]]) -> (io::Result<Vec<Vec<u8>>>, Vec<u8>) {
        let sent = sent.concat();
        let run = async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap());
            let (client, server) = tokio::join!(client, listener.accept());
            let (mut server, _) = server.unwrap();
            let serve = async {
                let _ = server.write_all(&sent).await;
                let _ = server.shutdown().await;
                let mut got = Vec::new();
                let _ = server.read_to_end(&mut got).await;
                got
            };
            let client = async {
                let mut socket = Socket::greet(client.unwrap(), "SUB").await?;
                socket.message(&[b"\x01"]).await?;
                socket.next().await
            };
            tokio::join!(client, serve)
        };
        Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(run)
    }

    #[test]
    fn messages_come_frame_by_frame_with_commands_between() {
        let long = [&[3][..], &300u64.to_be_bytes(), &[7; 300]].concat();
        let ping = b"\x04\x09\x04PING\0\x05ab";
        let (message, got) = read(&[GREETING, READY, ping, b"\x01\0", ping, &long, b"\0\x02hi"]);
        assert_eq!(message.unwrap(), [vec![], vec![7; 300], b"hi".to_vec()]);
        assert_eq!(got[..64], *b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let pong = b"\x04\x07\x04PONGab";
        let rest = [
            b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB",
            &b"\0\x01\x01"[..],
            pong,
            pong,
        ]
        .concat();
        assert_eq!(got[64..], rest);
    }

    #[test]
    fn what_is_wrong_or_too_much_ends_the_connection() {
        let old = [&GREETING[..10], b"\x01", &GREETING[11..]].concat();
        let plain = [&GREETING[..12], b"PLAIN", &GREETING[17..]].concat();
        let huge = [&[2][..], &u64::MAX.to_be_bytes(), &[0; 9]].concat();
        let half = [
            &[3][..],
            &(MAX_MESSAGE as u64 / 2).to_be_bytes(),
            &vec![0; MAX_MESSAGE / 2],
        ]
        .concat();
        let many = b"\x01\0".repeat(MAX_FRAMES + 1);
        for (sent, why) in [
            (
                &[b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(3).as_slice()][..],
                "no ZeroMQ",
            ),
            (&[&old], "before 3"),
            (&[&plain], "encryption or a password"),
            (&[GREETING, b"\x04\x08\x05ERROR\x01x"], "refuses"),
            (&[GREETING, b"\0\x02hi"], "does not greet"),
            (&[GREETING, &huge], "more than 8388608 bytes"),
            (&[GREETING, READY, &huge], "more than 8388608 bytes"),
            (
                &[GREETING, READY, &half, &half, b"\0\x01x"],
                "more than 8388608 bytes",
            ),
            (&[GREETING, READY, &many], "more than 8 frames"),
            (&[GREETING, READY, b"\0\x05hi"], ""),
            (&[GREETING, READY], "it closed"),
            (&[&GREETING[..20]], ""),
            (&[], ""),
        ] {
            let error = read(sent).0.unwrap_err().to_string();
            assert!(error.contains(why), "{error}, not {why}");
        }
    }
}
