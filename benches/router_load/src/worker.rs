//! A worker that answers at once: a fixed completion, or, if the body asks to stream, 16 server-sent events with
//! a write each.

use std::io::Result;

use memchr::memmem;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::framing::MessageReader;

const EVENTS: usize = 16;
/// The wish to stream must stand in the first bytes of a body: a worker that searched all of it would be the
/// bottleneck.
const SEARCHED: usize = 256;

pub async fn serve(ports: &[u16]) -> Result<()> {
    for &port in ports {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
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
    let (read, mut write) = stream.split();
    let mut reader = MessageReader::new(read);
    let answers = Answers::new();
    while let Some(head) = reader.head().await? {
        let mut start = Vec::new();
        reader
            .body(&head, |piece| {
                let room = SEARCHED.saturating_sub(start.len());
                start.extend_from_slice(&piece[..room.min(piece.len())]);
            })
            .await?;
        if !head.line.starts_with("POST ") {
            write.write_all(about(&head.line).as_bytes()).await?;
        } else if memmem::find(&start, b"\"stream\":true").is_some() {
            write.write_all(STREAM_HEAD).await?;
            for _ in 0..EVENTS {
                write.write_all(answers.event.as_bytes()).await?;
            }
            write.write_all(b"0\r\n\r\n").await?;
        } else {
            write.write_all(answers.completion.as_bytes()).await?;
        }
    }
    Ok(())
}

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

struct Answers {
    completion: String,
    event: String,
}

impl Answers {
    fn new() -> Self {
        let text = "x".repeat(300);
        let completion = json(&format!(
            r#"{{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}]}}"#
        ));
        let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n";
        let event = format!("{:x}\r\n{event}\r\n", event.len());
        Answers { completion, event }
    }
}

/// The paths that routers ask before they send a worker requests.
pub fn about(line: &str) -> String {
    match line.split(' ').nth(1).unwrap_or_default() {
        "/v1/models" => json(
            r#"{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"mock"}]}"#,
        ),
        "/get_server_info" | "/server_info" | "/get_model_info" | "/model_info" => {
            json(r#"{"model_path":"m","served_model_name":"m","is_generation":true}"#)
        }
        _ => json(r#"{"status":"ok"}"#),
    }
}

pub fn json(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
