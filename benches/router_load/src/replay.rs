//! Runs the traces of the hit-rate table through a router or through the simulator.

use std::cell::RefCell;
use std::io::{Error, Result};
use std::rc::Rc;

use router_sim::baselines::PerfectAffinity;
use router_sim::fleet::{Setup, run};
use router_sim::trace::{Request, Shape};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::framing::MessageReader;

/// Sends a trace's requests in their order, as many at a time as the simulator has in flight.
pub async fn replay(port: u16, shape: &Shape) -> Result<()> {
    let trace = Rc::new(RefCell::new(shape.make().into_iter()));
    let clients = Setup::new(1, shape).clients.unwrap_or(1);
    let asking: Vec<JoinHandle<Result<()>>> = (0..clients)
        .map(|_| tokio::task::spawn_local(ask_all(port, trace.clone())))
        .collect();
    for client in asking {
        client.await.map_err(Error::other)??;
    }
    Ok(())
}

async fn ask_all(port: u16, trace: Rc<RefCell<impl Iterator<Item = Request>>>) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.split();
    let mut reader = MessageReader::new(read);
    loop {
        let Some(request) = trace.borrow_mut().next() else {
            return Ok(());
        };
        write.write_all(message(&request).as_bytes()).await?;
        let head = reader.head().await?.ok_or_else(|| Error::other("closed"))?;
        let mut body = Vec::new();
        reader
            .body(&head, |piece| body.extend_from_slice(piece))
            .await?;
        if !head.line.contains(" 200") {
            let text = String::from_utf8_lossy(&body);
            return Err(Error::other(format!("{}: {text}", head.line)));
        }
    }
}

fn message(request: &Request) -> String {
    let text = |append: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        append(&mut bytes);
        String::from_utf8(bytes).expect("letters and spaces")
    };
    let body = serde_json::json!({
        "model": "m",
        "max_tokens": request.output_tokens,
        "messages": [
            {"role": "system", "content": text(&|out| request.system(out))},
            {"role": "user", "content": text(&|out| request.user(out))},
        ],
    })
    .to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The result of perfect affinity that does not look at load, as a line of JSON.
pub fn perfect(shape: &Shape, workers: usize) -> String {
    let setup = Setup::new(workers, shape);
    let outcome = run(&setup, &shape.make(), &PerfectAffinity::default());
    format!(
        r#"{{"hit_rate": {}, "max_over_mean": {}}}"#,
        outcome.hit_rate, outcome.max_over_mean
    )
}
