//! The two ends of a router benchmark, small enough not to be the bottleneck:
//!
//!     bench_peer worker PORT...
//!     bench_peer pass PORT TARGET_PORT
//!     bench_peer load HOST:PORT CONNECTIONS SECONDS [json | sse] [BODY_BYTES]
//!
//! A worker answers any POST with a fixed completion, or with 16 server-sent events, a write each, where
//! the body asks to stream. `pass` hands bytes on without looking at them: the floor under any proxy. The load is closed-loop: every connection sends its next request when the last
//! one is answered. It prints requests/s and the median and 99th percentile latency in microseconds.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};

const EVENTS: usize = 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    match words.as_slice() {
        ["worker", ports @ ..] if !ports.is_empty() => runtime.block_on(worker(ports)),
        ["pass", port, target] => runtime.block_on(pass(port, format!("127.0.0.1:{target}"))),
        ["load", target, connections, seconds, rest @ ..] => {
            let streams = rest.first() == Some(&"sse");
            let body = rest
                .get(1)
                .map_or(Ok(1200), |bytes| bytes.parse())
                .map_err(Error::other)?;
            let connections = connections.parse().map_err(Error::other)?;
            let seconds = seconds.parse().map_err(Error::other)?;
            runtime.block_on(load(
                target,
                connections,
                Duration::from_secs_f64(seconds),
                streams,
                body,
            ))
        }
        _ => Err(Error::other(
            "usage: bench_peer worker PORT... | pass PORT TARGET_PORT | load HOST:PORT CONNECTIONS SECONDS [json | sse] [BODY_BYTES]",
        )),
    }
}

async fn pass(port: &str, target: String) -> Result<()> {
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    loop {
        let (mut client, _) = listener.accept().await?;
        let target = target.clone();
        tokio::task::spawn_local(async move {
            let mut server = TcpStream::connect(target).await?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
    }
}

/// Where a message's head ends, and how long a body its `Content-Length` announces.
fn head(bytes: &[u8]) -> Option<(usize, Option<usize>)> {
    let end = memchr::memmem::find(bytes, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    Some((end, length))
}

async fn worker(ports: &[&str]) -> Result<()> {
    for port in ports {
        let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(answer_all(stream));
            }
        });
    }
    std::future::pending().await
}

async fn answer_all(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let text = "x".repeat(300);
    let json = format!(
        "{{\"id\":\"c\",\"object\":\"chat.completion\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}}}}]}}"
    );
    let json = format!(
        "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    );
    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n";
    let event = format!("{:x}\r\n{event}\r\n", event.len());
    let mut read = Vec::with_capacity(1 << 17);
    loop {
        let (end, length) = loop {
            if let Some((end, length)) = head(&read)
                && read.len() >= end + length.unwrap_or(0)
            {
                break (end, length.unwrap_or(0));
            }
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        let streams = memchr::memmem::find(&read[end..end + length], b"\"stream\":true").is_some();
        read.drain(..end + length);
        if !streams {
            stream.write_all(json.as_bytes()).await?;
            continue;
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .await?;
        for _ in 0..EVENTS {
            stream.write_all(event.as_bytes()).await?;
        }
        stream.write_all(b"0\r\n\r\n").await?;
    }
}

async fn load(
    target: &str,
    connections: usize,
    time: Duration,
    streams: bool,
    body: usize,
) -> Result<()> {
    let deadline = Instant::now() + time;
    let mut tasks = Vec::new();
    for number in 0..connections {
        let stream = TcpStream::connect(target).await?;
        tasks.push(tokio::task::spawn_local(ask(
            stream, number, deadline, streams, body,
        )));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.map_err(Error::other)??);
    }
    latencies.sort_unstable();
    let at = |share: f64| {
        latencies
            .get((latencies.len() as f64 * share) as usize)
            .copied()
            .unwrap_or(0)
    };
    println!(
        "{:.0} requests/s, p50 {} us, p99 {} us",
        latencies.len() as f64 / time.as_secs_f64(),
        at(0.5),
        at(0.99)
    );
    Ok(())
}

/// Requests on one connection until the deadline; their latencies in microseconds.
async fn ask(
    mut stream: TcpStream,
    number: usize,
    deadline: Instant,
    streams: bool,
    body: usize,
) -> Result<Vec<u32>> {
    stream.set_nodelay(true)?;
    let text: String = (0..body)
        .map(|index| char::from(b'a' + ((number * 7 + index * index) % 26) as u8))
        .collect();
    let body = format!(
        "{{\"model\":\"m\",\"stream\":{streams},\"messages\":[{{\"role\":\"user\",\"content\":\"client {number} {text}\"}}]}}"
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nuser-agent: bench\r\naccept: */*\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut latencies = Vec::new();
    let mut read = Vec::with_capacity(1 << 16);
    loop {
        let start = Instant::now();
        if start >= deadline {
            return Ok(latencies);
        }
        stream.write_all(request.as_bytes()).await?;
        read.clear();
        loop {
            if stream.read_buf(&mut read).await? == 0 {
                return Err(Error::other("the connection was closed"));
            }
            match head(&read) {
                Some((end, Some(length))) if read.len() >= end + length => break,
                Some((_, None)) if read.ends_with(b"\r\n0\r\n\r\n") => break,
                _ => {}
            }
        }
        if !read.starts_with(b"HTTP/1.1 200") {
            return Err(Error::other(String::from_utf8_lossy(&read).into_owned()));
        }
        latencies.push(start.elapsed().as_micros() as u32);
    }
}
