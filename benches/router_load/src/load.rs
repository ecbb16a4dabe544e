//! A closed loop: every client sends its next request when its last one is answered.

use std::io::{Error, Result, Write};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::framing::MessageReader;

#[derive(Clone, Copy, PartialEq)]
pub enum RequestKind {
    /// A chat completion in one piece.
    Json,
    /// The same, streamed.
    Sse,
    /// A chat completion about an image, which stands in the body as a data URL.
    Image,
}

pub struct Load {
    pub port: u16,
    pub clients: usize,
    pub time: Duration,
    pub kind: RequestKind,
    pub body_bytes: usize,
}

/// The share of the time for connections to open and caches to fill; its requests are not in the rate.
const WARM_UP: f64 = 0.15;
/// A pause after a refusal: a router that refuses everything is not asked as fast as it can refuse.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Seen {
    /// When each request that was answered began and ended, from the start of the load.
    answered: Vec<(Duration, Duration)>,
    failed: usize,
    first_failure: Option<String>,
}

impl Load {
    /// One line of JSON: requests in all, requests/s, p50 and p99 in microseconds, failures.
    pub async fn run(&self) -> Result<String> {
        // Large bodies take their time to make.
        let clients: Vec<Client> = (0..self.clients)
            .map(|number| Client::new(self, number))
            .collect();
        let start = Instant::now();
        let asking: Vec<JoinHandle<Seen>> = clients
            .into_iter()
            .map(|client| tokio::task::spawn_local(client.ask_until(start, self.time)))
            .collect();
        let mut all = Seen::default();
        for client in asking {
            let seen = client.await.map_err(Error::other)?;
            all.answered.extend(seen.answered);
            all.failed += seen.failed;
            all.first_failure = all.first_failure.or(seen.first_failure);
        }
        Ok(self.report(&all))
    }

    fn report(&self, seen: &Seen) -> String {
        let warm = self.time.mul_f64(WARM_UP);
        let measured = seen.answered.iter().filter(|(began, _)| *began >= warm);
        let mut latencies: Vec<Duration> = measured.map(|(began, ended)| *ended - *began).collect();
        latencies.sort_unstable();
        let end = seen.answered.iter().map(|(_, ended)| *ended).max();
        let seconds = end.map_or(0.0, |end| end.saturating_sub(warm).as_secs_f64());
        let rate = if seconds > 0.0 {
            latencies.len() as f64 / seconds
        } else {
            0.0
        };
        let at = |share: f64| {
            let position = (latencies.len() as f64 * share) as usize;
            latencies
                .get(position)
                .map_or(0.0, |latency| latency.as_nanos() as f64 / 1e3)
        };
        format!(
            r#"{{"requests": {}, "rate": {rate:.1}, "p50_us": {:.1}, "p99_us": {:.1}, "failed": {}, "failure": {:?}}}"#,
            seen.answered.len(),
            at(0.5),
            at(0.99),
            seen.failed,
            seen.first_failure.as_deref().unwrap_or_default(),
        )
    }
}

struct Client {
    port: u16,
    request: Vec<u8>,
    /// The position of the digits that make each prompt end differently, as the turns of a conversation do.
    tail: usize,
}

const TAIL: &str = "00000000";

impl Client {
    fn new(load: &Load, number: usize) -> Self {
        let filler = |count: usize| -> String {
            let letter = |index| char::from(b'a' + ((number * 7 + index * index) % 26) as u8);
            let line: String = (0..count.min(1000)).map(letter).collect();
            line.chars().cycle().take(count).collect()
        };
        let stream = load.kind == RequestKind::Sse;
        let start =
            format!(r#"{{"model":"m","stream":{stream},"messages":[{{"role":"user","content":"#);
        let (content, end) = if load.kind == RequestKind::Image {
            let url = format!("data:image/png;base64,{}", filler(load.body_bytes));
            let image = format!(
                r#"[{{"type":"image_url","image_url":{{"url":"{url}"}}}},{{"type":"text","text":"{TAIL}"#
            );
            (image, r#""}]}]}"#)
        } else {
            (
                format!(r#""client {number} {}{TAIL}"#, filler(load.body_bytes)),
                r#""}]}"#,
            )
        };
        let body = format!("{start}{content}{end}");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nuser-agent: bench\r\naccept: */*\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let request = [head, body].concat().into_bytes();
        let tail = request.len() - end.len() - TAIL.len();
        Client {
            port: load.port,
            request,
            tail,
        }
    }

    async fn ask_until(mut self, start: Instant, time: Duration) -> Seen {
        let mut seen = Seen::default();
        while start.elapsed() < time {
            let Err(error) = self.ask_on_one_connection(start, time, &mut seen).await else {
                break;
            };
            seen.failed += 1;
            seen.first_failure.get_or_insert(error.to_string());
            tokio::time::sleep(AFTER_FAILURE).await;
        }
        seen
    }

    async fn ask_on_one_connection(
        &mut self,
        start: Instant,
        time: Duration,
        seen: &mut Seen,
    ) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let (read, mut write) = stream.split();
        let mut reader = MessageReader::new(read);
        loop {
            let began = start.elapsed();
            if began >= time {
                return Ok(());
            }
            write!(&mut self.request[self.tail..], "{:08}", seen.answered.len())?;
            // A refusal may come before all is sent, and says more than the broken pipe.
            let sent = write.write_all(&self.request).await;
            let head = match (reader.head().await, sent) {
                (Ok(Some(head)), _) => head,
                (Err(error), Ok(())) | (_, Err(error)) => return Err(error),
                (Ok(None), Ok(())) => return Err(Error::other("closed without an answer")),
            };
            let mut text = Vec::new();
            let is_good = head.line.contains(" 200");
            reader
                .body(&head, |piece| {
                    if !is_good {
                        text.extend_from_slice(piece);
                    }
                })
                .await?;
            if !is_good {
                text.truncate(200);
                let text = String::from_utf8_lossy(&text).into_owned();
                return Err(Error::other(format!("{}: {text}", head.line)));
            }
            seen.answered.push((began, start.elapsed()));
        }
    }
}
