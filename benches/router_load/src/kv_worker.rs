//! Workers with a simulated KV cache: they prefill one prompt after another, decode all together, and report what
//! was cached in `usage`. Time runs faster than it would on a GPU.

use std::io::{Error, Result};
use std::rc::Rc;
use std::time::Duration;

use router_sim::kv::KvCache;
use router_sim::trace::TOKEN_BYTES;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::framing::MessageReader;
use crate::worker::{about, json};

/// How many times faster than the simulated time it runs.
const SPEED: f64 = 100.0;
/// Tokens a second of a prompt, and seconds for each token of an answer, as in the simulator.
const PREFILL_RATE: f64 = 20_000.0 * SPEED;
const TOKEN_SECONDS: f64 = 0.01 / SPEED;

struct Replica {
    kv: KvCache,
    /// When the prefill of the last prompt ends.
    free_at: Instant,
    requests: usize,
    prompt_bytes: usize,
    cached_bytes: usize,
}

/// `kv_bytes` is each worker's cache, in bytes of prompt text.
pub async fn serve(kv_bytes: usize, ports: &[u16]) -> Result<()> {
    for &port in ports {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let replica = Rc::new(Mutex::new(Replica {
            kv: KvCache::new(kv_bytes),
            free_at: Instant::now(),
            requests: 0,
            prompt_bytes: 0,
            cached_bytes: 0,
        }));
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(answer_all(replica.clone(), stream));
            }
        });
    }
    std::future::pending().await
}

async fn answer_all(replica: Rc<Mutex<Replica>>, mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.split();
    let mut reader = MessageReader::new(read);
    while let Some(head) = reader.head().await? {
        let mut body = Vec::new();
        reader
            .body(&head, |piece| body.extend_from_slice(piece))
            .await?;
        let answer = if head.line.starts_with("POST ") {
            complete(&replica, &body).await?
        } else if head.line.contains(" /stats ") {
            let seen = replica.lock().await;
            json(&format!(
                r#"{{"requests": {}, "prompt_bytes": {}, "cached_bytes": {}}}"#,
                seen.requests, seen.prompt_bytes, seen.cached_bytes
            ))
        } else {
            about(&head.line)
        };
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

async fn complete(replica: &Mutex<Replica>, body: &[u8]) -> Result<String> {
    let body: Value = serde_json::from_slice(body)?;
    let prompt = prompt(&body).ok_or_else(|| Error::other("a chat completion's body"))?;
    let output = body["max_tokens"].as_u64().unwrap_or(1);
    let arrived = Instant::now();
    // The lock is first come, first served: prompts are computed in the order of their arrival.
    let mut place = replica.lock().await;
    sleep_until(place.free_at).await;
    let cached = place.kv.cached(&prompt);
    place.kv.insert(&prompt);
    let seconds = ((prompt.len() - cached) / TOKEN_BYTES) as f64 / PREFILL_RATE;
    place.free_at = place.free_at.max(arrived) + Duration::from_secs_f64(seconds);
    place.requests += 1;
    place.prompt_bytes += prompt.len();
    place.cached_bytes += cached;
    let ends = place.free_at + Duration::from_secs_f64(output as f64 * TOKEN_SECONDS);
    drop(place);
    sleep_until(ends).await;
    let (tokens, cached) = (prompt.len() / TOKEN_BYTES, cached / TOKEN_BYTES);
    Ok(json(&format!(
        r#"{{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"hello"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":{tokens},"completion_tokens":{output},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#,
        tokens as u64 + output
    )))
}

fn prompt(body: &Value) -> Option<Vec<u8>> {
    let mut prompt = Vec::new();
    for message in body["messages"].as_array()? {
        prompt.extend_from_slice(message["content"].as_str()?.as_bytes());
    }
    Some(prompt)
}
