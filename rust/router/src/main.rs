//! `sglang-omni-router`: the router without Python.

use std::process::ExitCode;
use std::time::Duration;

use sglang_omni_router::{Config, ConfigError, PolicyKind, Router};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "\
usage: sglang-omni-router [--worker-urls URL...] [--host HOST] [--port PORT] [--policy POLICY]
                          [--cache-threshold SHARE] [--balance-abs-threshold REQUESTS]
                          [--balance-rel-threshold FACTOR] [--eviction-interval SECONDS]
                          [--max-tree-size BYTES]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .iter()
        .any(|argument| argument == "--help" || argument == "-h")
    {
        println!("{USAGE}\n\npolicies: {}", PolicyKind::NAMES.join(", "));
        return ExitCode::SUCCESS;
    }
    let router = match parse(&arguments)
        .map_err(|error| error.to_string())
        .and_then(|config| Router::start(config).map_err(|error| error.to_string()))
    {
        Ok(router) => router,
        Err(error) => {
            eprintln!("{USAGE}\nsglang-omni-router: error: {error}");
            return ExitCode::from(2);
        }
    };
    eprintln!("sglang-omni-router: listening on http://{}", router.addr());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let watched = runtime.and_then(|runtime| runtime.block_on(until_ended(&router)));
    if let Err(error) = watched {
        eprintln!("sglang-omni-router: cannot watch for signals: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// SIGTERM drains; SIGINT, or a second SIGTERM, ends at once.
async fn until_ended(router: &Router) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => router.drain(),
    }
    while !router.wait(Duration::ZERO) {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    let mut rest = arguments.iter().peekable();
    while let Some(flag) = rest.next() {
        if flag == "--worker-urls" {
            while let Some(url) = rest.next_if(|next| !next.starts_with("--")) {
                config.worker_urls.push(url.clone());
            }
            continue;
        }
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, value.to_owned()),
            None => {
                let missing = || ConfigError(format!("{flag}: needs a value"));
                (flag.as_str(), rest.next().ok_or_else(missing)?.clone())
            }
        };
        match flag {
            "--host" => config.host = value,
            "--port" => config.port = number(flag, &value)?,
            "--policy" => {
                config.policy = value
                    .parse()
                    .map_err(|error| ConfigError(format!("--policy: {error}")))?
            }
            "--cache-threshold" => config.cache_threshold = number(flag, &value)?,
            "--balance-abs-threshold" => config.balance_abs_threshold = number(flag, &value)?,
            "--balance-rel-threshold" => config.balance_rel_threshold = number(flag, &value)?,
            "--eviction-interval" => {
                config.eviction_interval = Duration::from_secs(number(flag, &value)?)
            }
            "--max-tree-size" => config.max_tree_size = number(flag, &value)?,
            _ => return Err(ConfigError(format!("{flag}: no such option"))),
        }
    }
    Ok(config)
}

fn number<T: std::str::FromStr>(flag: &str, value: &str) -> Result<T, ConfigError> {
    value
        .parse()
        .map_err(|_| ConfigError(format!("{flag}: {value:?} is not a number it can take")))
}
