//! The two ends of the benchmarks of the router, small enough not to be the bottleneck:
//!
//!     router-load worker PORT...
//!     router-load pass PORT TARGET_PORT
//!     router-load load PORT CLIENTS SECONDS (json | sse | image) BODY_BYTES
//!     router-load kv-worker TRACE PORT...
//!     router-load replay TRACE PORT
//!     router-load perfect TRACE WORKERS
//!
//! Everything is on 127.0.0.1, and each process is one thread. `pass` copies bytes without looking at them: the
//! lower bound of any proxy. `load` prints one line of JSON. The last three are for the hit rate on a trace,
//! multi-turn or shared-prefixes: workers with a KV cache, which report at /stats what they have seen.

mod framing;
mod kv_worker;
mod load;
mod pass;
mod replay;
mod worker;

use std::io::{Error, Result};
use std::str::FromStr;
use std::time::Duration;

use router_sim::fleet::Setup;
use router_sim::trace::Shape;
use tokio::runtime::{Builder, LocalOptions};

use crate::load::{Load, RequestKind};

const USAGE: &str = "\
usage: router-load worker PORT...
       router-load pass PORT TARGET_PORT
       router-load load PORT CLIENTS SECONDS (json | sse | image) BODY_BYTES
       router-load kv-worker TRACE PORT...
       router-load replay TRACE PORT
       router-load perfect TRACE WORKERS
traces: multi-turn shared-prefixes";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    match words.as_slice() {
        ["worker", ports @ ..] if !ports.is_empty() => {
            runtime.block_on(worker::serve(&numbers(ports)?))
        }
        ["kv-worker", trace, ports @ ..] if !ports.is_empty() => {
            let kv_bytes = Setup::new(ports.len(), &shape(trace)?).kv_bytes / ports.len();
            runtime.block_on(kv_worker::serve(kv_bytes, &numbers(ports)?))
        }
        ["replay", trace, port] => runtime.block_on(replay::replay(number(port)?, &shape(trace)?)),
        ["perfect", trace, workers] => {
            println!("{}", replay::perfect(&shape(trace)?, number(workers)?));
            Ok(())
        }
        ["pass", port, target] => runtime.block_on(pass::serve(number(port)?, number(target)?)),
        ["load", port, clients, seconds, kind, bytes] => {
            let load = Load {
                port: number(port)?,
                clients: number(clients)?,
                time: Duration::from_secs_f64(number(seconds)?),
                kind: match *kind {
                    "json" => RequestKind::Json,
                    "sse" => RequestKind::Sse,
                    "image" => RequestKind::Image,
                    _ => return Err(Error::other(USAGE)),
                },
                body_bytes: number(bytes)?,
            };
            println!("{}", runtime.block_on(load.run())?);
            Ok(())
        }
        _ => Err(Error::other(USAGE)),
    }
}

fn shape(trace: &str) -> Result<Shape> {
    match trace {
        "multi-turn" => Ok(Shape::multi_turn()),
        "shared-prefixes" => Ok(Shape::shared_prefixes()),
        _ => Err(Error::other(USAGE)),
    }
}

fn numbers<T: FromStr>(words: &[&str]) -> Result<Vec<T>> {
    words.iter().map(|word| number(word)).collect()
}

fn number<T: FromStr>(word: &str) -> Result<T> {
    word.parse()
        .map_err(|_| Error::other(format!("{word:?} is not a number in range\n{USAGE}")))
}
