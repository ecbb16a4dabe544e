//! `sglang-omni-router`: the router without Python.

mod flags;

use std::process::ExitCode;
use std::time::Duration;

use sglang_omni_router::{Config, PolicyKind, Router};
use tokio::signal::unix::{SignalKind, signal};

const NAME: &str = "sglang-omni-router";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |flags: [&str; 2]| {
        let is_one = |argument: &String| flags.contains(&argument.as_str());
        arguments.iter().any(is_one)
    };
    if asked(["--help", "-h"]) {
        println!("usage: {NAME} [--OPTION VALUE]...\n\noptions, as docs/router.md explains them:");
        for name in flags::names::<Config>() {
            println!("  {name}");
        }
        println!("\npolicies: {}", PolicyKind::NAMES.join(", "));
        return ExitCode::SUCCESS;
    }
    if asked(["--version", "-V"]) {
        println!("{NAME} {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let router = match flags::parse::<Config>(&arguments)
        .and_then(|config| Router::start(config).map_err(|error| error.to_string()))
    {
        Ok(router) => router,
        Err(error) => {
            eprintln!("{NAME}: error: {error}; {NAME} --help lists the options");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let watched = runtime.and_then(|runtime| runtime.block_on(until_ended(&router)));
    if let Err(error) = watched {
        eprintln!("{NAME}: cannot watch for signals: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// SIGHUP reloads; SIGTERM drains; SIGINT, or a second SIGTERM, ends at once.
async fn until_ended(router: &Router) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    router.announce();
    loop {
        tokio::select! {
            _ = hangup.recv() => router.reload(),
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => break router.drain(),
        }
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
