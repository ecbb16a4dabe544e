//! The two ends of the benchmarks of the router, small enough not to be the bottleneck:
//!
//!     router-load worker PORT...
//!     router-load pass PORT TARGET_PORT
//!     router-load load PORT CLIENTS SECONDS (json | sse | image) BODY_BYTES
//!
//! Everything is on 127.0.0.1, and each process is one thread. `pass` hands bytes on without looking at
//! them: the floor under any proxy. `load` prints one line of JSON.

mod framing;
mod load;
mod pass;
mod worker;

use std::io::{Error, Result};
use std::str::FromStr;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};

use crate::load::{Kind, Load};

const USAGE: &str = "\
usage: router-load worker PORT...
       router-load pass PORT TARGET_PORT
       router-load load PORT CLIENTS SECONDS (json | sse | image) BODY_BYTES";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    match words.as_slice() {
        ["worker", ports @ ..] if !ports.is_empty() => {
            let ports: Result<Vec<u16>> = ports.iter().map(|port| number(port)).collect();
            runtime.block_on(worker::serve(&ports?))
        }
        ["pass", port, target] => runtime.block_on(pass::serve(number(port)?, number(target)?)),
        ["load", port, clients, seconds, kind, bytes] => {
            let load = Load {
                port: number(port)?,
                clients: number(clients)?,
                time: Duration::from_secs_f64(number(seconds)?),
                kind: match *kind {
                    "json" => Kind::Json,
                    "sse" => Kind::Sse,
                    "image" => Kind::Image,
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

fn number<T: FromStr>(word: &str) -> Result<T> {
    word.parse()
        .map_err(|_| Error::other(format!("{word:?} is not a number in range\n{USAGE}")))
}
