//! The program `sglang-omni-router`: the router without Python.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, Args, Command, Error, FromArgMatches};
use serde_json::Value;
use sglang_omni_router::{Config, Router};
use tokio::signal::unix::{SignalKind, signal};

const NAME: &str = "sglang-omni-router";

fn main() -> ExitCode {
    let config = parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    if let Err(error) = sglang_omni_faults::switch_on_from_environment() {
        eprintln!("{NAME}: error: {error}");
        return ExitCode::from(2);
    }
    let router = match Router::start(config) {
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

/// An option `--some-name` for each field `some_name` of `Config`, with its comment and default as help.
fn command() -> Command {
    let defaults = serde_json::to_value(Config::default()).expect("every field has a form in JSON");
    let mut order = 0;
    let option = |arg: Arg| {
        let field = arg.get_id().as_str().to_owned();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = match &defaults[&field] {
            Value::String(default) => format!("{help} [default: {default}]"),
            default => match default.as_f64() {
                Some(default) => format!("{help} [default: {default}]"),
                None => help,
            },
        };
        order += 1;
        let arg = arg
            .long(field.replace('_', "-"))
            .help(help)
            .display_order(order);
        match arg.get_action() {
            ArgAction::SetTrue => arg
                .action(ArgAction::Set)
                .num_args(0..=1)
                .default_missing_value("true"),
            ArgAction::Append => arg.num_args(0..),
            _ => arg,
        }
    };
    Config::augment_args_for_update(Command::new(NAME))
        .mut_args(option)
        .about("The router in front of servers of one API; docs/router.md explains it.")
        .version(env!("CARGO_PKG_VERSION"))
}

fn parse(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Config, Error> {
    let mut config = Config::default();
    config.update_from_arg_matches(&command().try_get_matches_from(arguments)?)?;
    Ok(config)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        super::parse([&[NAME], arguments].concat()).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_fields() {
        let config = parse(&[
            "--worker-urls",
            "http://a:1",
            "http://b:2",
            "--port=7",
            "--policy",
            "random",
            "--header-timeout",
            "0.5",
            "--max-payload-size",
            "12",
            "--log-format",
            "json",
            "--log-level",
            "warning",
            "--max-concurrent-requests",
            "-1",
            "--prometheus-port",
            "0",
            "--admin-api-key=-k",
            "--access-log",
            "--disable-retries=false",
        ])
        .unwrap();
        assert_eq!(config.worker_urls, ["http://a:1", "http://b:2"]);
        assert_eq!((config.port, config.policy.name()), (7, "random"));
        assert_eq!(config.header_timeout.as_millis(), 500);
        assert_eq!((config.max_body_bytes, config.access_log), (12, true));
        assert_eq!(config.max_concurrent_requests, None);
        assert_eq!(
            (config.prometheus_port, config.disable_retries),
            (Some(0), false)
        );
        assert_eq!(config.stall_timeout, Config::default().stall_timeout);
        assert_eq!(config.admin_api_key.as_deref(), Some("-k"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, words) in [
            (
                &["--port", "70000"][..],
                "'70000' for '--port <PORT>': 70000 is not in 0..=65535",
            ),
            (&["--port"], "value is required for '--port"),
            (
                &["--policy", "fastest"],
                "'fastest' for '--policy <POLICY>'",
            ),
            (
                &["--worker-url", "x"],
                "tip: a similar argument exists: '--worker-urls'",
            ),
            (&["--header-timeout", "soon"], "is not a number of seconds"),
            (&["http://a:1"], "unexpected argument 'http://a:1'"),
            (&["--log-format", "xml"], "[possible values: text, json]"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn help_says_what_each_option_does_and_its_default() {
        command().debug_assert();
        let defaults = serde_json::to_value(Config::default()).unwrap();
        let command = command();
        let options: Vec<&Arg> = command.get_arguments().collect();
        for field in defaults.as_object().unwrap().keys() {
            let option = options
                .iter()
                .find(|option| option.get_id() == field)
                .unwrap();
            assert_eq!(option.get_long(), Some(&*field.replace('_', "-")));
            assert!(
                option
                    .get_help()
                    .is_some_and(|help| !help.to_string().is_empty()),
                "{field}"
            );
        }
        let help = self::command().render_help().to_string();
        assert!(help.contains("--hung-timeout <HUNG_TIMEOUT>"), "{help}");
        assert!(help.contains("[default: cache_aware]"), "{help}");
        assert!(help.contains("--max-payload-size"), "{help}");
    }
}
