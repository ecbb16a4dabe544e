//! Follows the events of one data parallel rank of a worker.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sglang_omni_policy::blocks::event::{CacheEvent, Coverage};
use sglang_omni_policy::blocks::index::BlockIndex;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::batch::{self, BlockGroup};
use super::zmtp::Socket;
use crate::base::clock;
use crate::base::stream::KEEPALIVE;
use crate::fleet::worker::Worker;
use crate::upstream::address::Address;

/// How long a port may take to accept.
const CONNECT: Duration = Duration::from_secs(3);

/// Ends a replay, in place of a number.
const END: u64 = u64::MAX;

/// One rank of a worker.
pub struct Subscription {
    pub worker: Arc<Worker>,
    pub rank: u32,
    pub host: String,
    pub port: u16,
    pub replay_port: Option<u16>,
    pub topic: String,
    pub group: BlockGroup,
    pub coverage: Coverage,
    /// The number of the next batch, once it is known.
    pub next: Option<u64>,
    pub events: Vec<CacheEvent>,
}

impl Subscription {
    /// Applies what the rank publishes until its connection ends, and returns why. `on_coverage` is called whenever more or
    /// less of the cache is known.
    pub async fn follow(
        mut self,
        blocks: &BlockIndex,
        on_coverage: impl Fn(u32, Coverage),
    ) -> io::Error {
        let ended = self.follow_on(blocks, &on_coverage).await;
        match ended {
            Err(error) => error,
        }
    }

    async fn follow_on(
        &mut self,
        blocks: &BlockIndex,
        on_coverage: &impl Fn(u32, Coverage),
    ) -> Result<Infallible, io::Error> {
        let mut live = self.connect(self.port, "SUB").await?;
        live.message(&[&[b"\x01", self.topic.as_bytes()].concat()])
            .await?;
        if let Some(port) = self.replay_port {
            // All that it still has: if that begins with the first batch of all, the whole cache is known.
            let first = self.replay(blocks, port, 0).await?;
            self.coverage = match first {
                None | Some(0) => Coverage::Whole,
                Some(_) => Coverage::Part,
            };
            self.next.get_or_insert(0);
            on_coverage(self.rank, self.coverage);
        }
        loop {
            let frames = live.next().await?;
            let Some((number, payload)) = numbered(&frames) else {
                return Err(malformed("a message is none of events"));
            };
            let due = self.next.unwrap_or(0);
            if number < due {
                // It came with a replay.
                continue;
            }
            if number > due {
                self.close_gap(blocks, due, number).await?;
            } else if self.next.is_none() {
                self.coverage = Coverage::Whole;
            }
            // A replay has the batch itself too, if it was published before.
            if self.next.is_none_or(|next| next <= number) {
                self.apply(blocks, number, payload)?;
            }
            on_coverage(self.rank, self.coverage);
        }
    }

    /// Fetches the batches from `due` to before `number` again. If they cannot be had, what is known is forgotten.
    async fn close_gap(&mut self, blocks: &BlockIndex, due: u64, number: u64) -> io::Result<()> {
        let is_first = self.next.is_none();
        let first = match self.replay_port {
            Some(port) if !is_first => self.replay(blocks, port, due).await?,
            _ => None,
        };
        if first != Some(due) && !is_first {
            blocks.missed(number - due);
            tracing::warn!(
                worker = self.worker.url,
                batches = number - due,
                "cache events were lost: what is known of the worker's cache is forgotten"
            );
            blocks.forget_rank(self.worker.slot(), self.rank);
        }
        if first != Some(due) {
            self.coverage = Coverage::Part;
        }
        Ok(())
    }

    /// Applies the batches from `from` on that the worker still has, and returns the number of the first one.
    async fn replay(
        &mut self,
        blocks: &BlockIndex,
        port: u16,
        from: u64,
    ) -> io::Result<Option<u64>> {
        let mut again = self.connect(port, "DEALER").await?;
        again.message(&[b"", &from.to_be_bytes()]).await?;
        let mut first = None;
        loop {
            let frames = again.next().await?;
            let Some((number, payload)) = numbered(&frames) else {
                return Err(malformed("an answer to a replay is none of events"));
            };
            if number == END {
                return Ok(first);
            }
            if first.is_some() && self.next.is_some_and(|next| number != next) {
                return Err(malformed("a replay has gaps"));
            }
            if number < from {
                continue;
            }
            if first.is_none() && number > from && from > 0 {
                // Too late: the blocks that these follow are not known any more.
                return Ok(Some(number));
            }
            first.get_or_insert(number);
            self.apply(blocks, number, payload)?;
        }
    }

    fn apply(&mut self, blocks: &BlockIndex, number: u64, payload: &[u8]) -> io::Result<()> {
        self.events.clear();
        let read = batch::read(payload, &mut self.group, &mut self.events);
        for event in self.events.drain(..) {
            if event == CacheEvent::Cleared && self.coverage == Coverage::Part {
                self.coverage = Coverage::Whole;
            }
            blocks.apply(self.worker.slot(), self.rank, &event);
        }
        self.next = Some(number + 1);
        self.worker.cache_events.count(clock::now());
        read.ok_or_else(|| malformed("a batch of events cannot be read"))
    }

    async fn connect(&self, port: u16, kind: &str) -> io::Result<Socket> {
        let address = Address::new(&self.host, port);
        let connecting = async {
            if address.is_name() {
                address.look_up().await;
            }
            address.connect().await
        };
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("port {port}: {error}"));
        let late = |_| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("port {port} does not answer"),
            )
        };
        let stream: TcpStream = timeout(CONNECT, connecting)
            .await
            .map_err(late)?
            .map_err(named)?;
        SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
        stream.set_nodelay(true)?;
        Socket::greet(stream, kind).await.map_err(named)
    }
}

/// The number and the payload of a batch, which are the last two frames: a topic or a delimiter may come before.
fn numbered(frames: &[Vec<u8>]) -> Option<(u64, &[u8])> {
    let [.., number, payload] = frames else {
        return None;
    };
    let number = <[u8; 8]>::try_from(number.as_slice()).ok()?;
    Some((u64::from_be_bytes(number), payload))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
