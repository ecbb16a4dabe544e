//! The router's options, with their defaults and limits.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Deserialize, Serialize};
use sglang_omni_policy::{PolicyKind, PolicySettings};

use crate::app::values::{limit, policy_name, seconds};
use crate::base::config_error::ConfigError;
use crate::base::log::{Level, LogFormat};
use crate::fleet::cache_events::source::KvEvents;
use crate::fleet::discovery;
use crate::upstream::worker_url::WorkerUrl;

/// All options. `Default` has the command line's defaults. In JSON, every field may be left out, and durations are
/// seconds. `--help` shows the fields' comments.
#[derive(Clone, Debug, Deserialize, Serialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address to listen on.
    pub host: String,
    /// The port to listen on; 0 takes a free one.
    pub port: u16,
    /// `http://host:port` or `https://host:port` of each worker; `POST /workers` adds more.
    pub worker_urls: Vec<String>,
    /// A PEM file with the authorities that sign https workers' certificates; without it, the system's.
    pub worker_ca_file: Option<PathBuf>,
    /// A file that lists workers; it is watched.
    pub workers_file: Option<PathBuf>,
    /// `name:port`; each address of the name is a worker.
    pub worker_dns: Vec<String>,
    /// Seconds between two look-ups of these names.
    #[serde(with = "seconds")]
    #[arg(value_parser = seconds::parse)]
    pub dns_interval: Duration,
    /// How a worker is chosen.
    #[serde(with = "policy_name")]
    #[arg(value_parser = PossibleValuesParser::new(PolicyKind::NAMES).try_map(|name| name.parse::<PolicyKind>()))]
    pub policy: PolicyKind,
    /// `cache_aware`: a prompt of which no worker knows more than this share, 0 to 1, is cold, and avoids
    /// workers with large trees.
    pub cache_threshold: f64,
    /// `cache_aware`: load weighs twice as much if the longest queue exceeds the shortest by more than this
    /// many requests and by more than `--balance-rel-threshold` times.
    pub balance_abs_threshold: usize,
    /// `cache_aware`: the factor of that condition.
    pub balance_rel_threshold: f64,
    /// `cache_aware`: seconds between two trims of the prefix tree.
    #[serde(with = "seconds", alias = "eviction_interval_secs")]
    #[arg(value_parser = seconds::parse, visible_alias = "eviction-interval-secs")]
    pub eviction_interval: Duration,
    /// `cache_aware`: bytes of memory that the prefix tree takes for each worker, and a quarter as much for
    /// prompts that are on their way to it. All workers share 1 GiB, or this if it is more.
    pub max_tree_size: usize,
    /// `cache_aware`: whether workers' own events about their caches are followed: `off`, `auto` for the workers that
    /// announce them in `/get_server_info`, or the JSON that all workers got as `--kv-events-config`.
    pub kv_events: String,
    /// Threads that serve; 0 takes one for each core this process may use.
    pub threads: usize,
    /// Larger request bodies are refused with 413.
    #[serde(alias = "max_payload_size")]
    #[arg(visible_alias = "max-payload-size")]
    pub max_body_bytes: u64,
    /// The most bytes that the router holds of bodies that no worker has begun to answer, in equal parts for its
    /// threads; more is refused with 503.
    pub max_held_bytes: usize,
    /// A request head that is not complete after this many seconds is refused with 408.
    #[serde(with = "seconds")]
    #[arg(value_parser = seconds::parse)]
    pub header_timeout: Duration,
    /// A client that sends less than 1 KiB a second of a body for this many seconds gets 408; one that reads
    /// nothing of its answer for as long is disconnected.
    #[serde(with = "seconds")]
    #[arg(value_parser = seconds::parse)]
    pub stall_timeout: Duration,
    /// An answer or an upgraded connection without data for this many seconds is broken off; 0 waits for ever.
    #[serde(with = "seconds")]
    #[arg(value_parser = seconds::parse)]
    pub stream_idle_timeout: Duration,
    /// A connection without a request for this many seconds is closed.
    #[serde(with = "seconds")]
    #[arg(value_parser = seconds::parse)]
    pub keep_alive_timeout: Duration,
    /// A connection to a worker without a request for this many seconds is closed; earlier where the worker closes it
    /// or says so in `Keep-Alive`.
    #[serde(with = "seconds")]
    #[arg(value_parser = seconds::parse)]
    pub worker_keep_alive_timeout: Duration,
    /// Seconds that requests in flight may take to finish once a drain was asked for.
    #[serde(with = "seconds", alias = "shutdown_grace_period_secs")]
    #[arg(value_parser = seconds::parse, visible_alias = "shutdown-grace-period-secs")]
    pub drain_timeout: Duration,
    /// Seconds between two health checks of a worker.
    #[serde(with = "seconds", alias = "health_check_interval_secs")]
    #[arg(value_parser = seconds::parse, visible_alias = "health-check-interval-secs")]
    pub probe_interval: Duration,
    /// A health check that is not answered after this many seconds has failed.
    #[serde(with = "seconds", alias = "health_check_timeout_secs")]
    #[arg(value_parser = seconds::parse, visible_alias = "health-check-timeout-secs")]
    pub probe_timeout: Duration,
    /// How often a request that a worker may have seen goes to another one.
    pub retry_max_retries: u32,
    /// A request that a worker may have seen goes to no other one.
    pub disable_retries: bool,
    /// Failures in a row that put a worker behind the others, while these succeed.
    pub cb_failure_threshold: u32,
    /// Seconds until a failing or hung worker gets one request as a trial.
    #[serde(with = "seconds", alias = "cb_timeout_duration_secs")]
    #[arg(value_parser = seconds::parse, visible_alias = "cb-timeout-duration-secs")]
    pub cb_timeout: Duration,
    /// No worker is put behind the others for its failures.
    pub disable_circuit_breaker: bool,
    /// Seconds of silence after which a worker may be hung, and requests without a first byte go to another one.
    #[serde(with = "seconds")]
    #[arg(value_parser = seconds::parse)]
    pub hung_timeout: Duration,
    /// A request without a first byte after this many seconds is answered with 504.
    #[serde(with = "seconds", alias = "request_timeout_secs")]
    #[arg(value_parser = seconds::parse, visible_alias = "request-timeout-secs")]
    pub request_timeout: Duration,
    /// Keys of which a client must show one; without any, every client is admitted.
    pub api_key: Vec<String>,
    /// A file with more of them, one a line.
    pub api_key_file: Option<PathBuf>,
    /// The key that workers are shown instead of the client's; without one they see the client's.
    pub worker_api_key: Option<String>,
    /// A file with that key.
    pub worker_api_key_file: Option<PathBuf>,
    /// The key for administration, which is all that changes or shows the fleet. Without one, only clients on this
    /// machine may administer the router.
    pub admin_api_key: Option<String>,
    /// A file with that key.
    pub admin_api_key_file: Option<PathBuf>,
    /// Host names under which the router may be administered, beside addresses, `localhost` and `--host`; `*` for
    /// any.
    pub allowed_hosts: Vec<String>,
    /// Answers and metrics name workers by their URLs, instead of their ids.
    pub expose_worker_urls: bool,
    /// A PEM file with the certificate for TLS, followed by its chain.
    pub tls_cert_path: Option<PathBuf>,
    /// A PEM file with the certificate's key.
    pub tls_key_path: Option<PathBuf>,
    /// Origins of web pages that may read answers; `*` for any.
    pub cors_allowed_origins: Vec<String>,
    /// A second port, for `/metrics` alone; 0 takes a free one, -1 none.
    #[arg(value_parser = limit::<u16>, allow_negative_numbers = true)]
    pub prometheus_port: std::option::Option<u16>,
    /// The address of that port.
    pub prometheus_host: String,
    /// Requests that may be at workers at once; -1 does not limit them.
    #[arg(value_parser = limit::<usize>, allow_negative_numbers = true)]
    pub max_concurrent_requests: std::option::Option<usize>,
    /// Requests beyond `--max-concurrent-requests` that may wait; more are refused with 429.
    pub queue_size: usize,
    /// A request that has waited this many seconds is refused with 429.
    #[serde(with = "seconds", alias = "queue_timeout_secs")]
    #[arg(value_parser = seconds::parse, visible_alias = "queue-timeout-secs")]
    pub queue_timeout: Duration,
    /// A JSON file with the tenants' weights, rates and priorities; it is read again at SIGHUP.
    pub tenants_file: Option<PathBuf>,
    /// Headers that may hold a request's id, read in order and before `x-request-id`.
    pub request_id_headers: Vec<String>,
    /// Lines below it are not logged.
    pub log_level: Level,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// Every request is logged when it ends.
    pub access_log: bool,
    /// The URL of an OpenTelemetry collector that gets a span of each request, as OTLP over HTTP; or
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` names it.
    pub otlp_traces_endpoint: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        let policy = PolicySettings::default();
        Config {
            host: "127.0.0.1".to_owned(),
            port: 30000,
            worker_urls: Vec::new(),
            worker_ca_file: None,
            workers_file: None,
            worker_dns: Vec::new(),
            dns_interval: Duration::from_secs(5),
            policy: policy.kind,
            cache_threshold: policy.cache_threshold,
            balance_abs_threshold: policy.balance_abs_threshold,
            balance_rel_threshold: policy.balance_rel_threshold,
            eviction_interval: Duration::from_secs(60),
            max_tree_size: policy.max_tree_size,
            kv_events: "off".to_owned(),
            threads: 0,
            max_body_bytes: 256 << 20,
            max_held_bytes: 1 << 30,
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            stream_idle_timeout: Duration::from_secs(300),
            keep_alive_timeout: Duration::from_secs(120),
            worker_keep_alive_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            probe_interval: Duration::from_secs(1),
            probe_timeout: Duration::from_secs(2),
            retry_max_retries: 3,
            disable_retries: false,
            cb_failure_threshold: 5,
            cb_timeout: Duration::from_secs(2),
            disable_circuit_breaker: false,
            hung_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(1800),
            api_key: Vec::new(),
            api_key_file: None,
            worker_api_key: None,
            worker_api_key_file: None,
            admin_api_key: None,
            admin_api_key_file: None,
            allowed_hosts: Vec::new(),
            expose_worker_urls: false,
            tls_cert_path: None,
            tls_key_path: None,
            cors_allowed_origins: Vec::new(),
            prometheus_port: None,
            prometheus_host: "127.0.0.1".to_owned(),
            max_concurrent_requests: None,
            queue_size: 100,
            queue_timeout: Duration::from_secs(60),
            tenants_file: None,
            request_id_headers: Vec::new(),
            log_level: Level::Info,
            log_format: LogFormat::Text,
            access_log: false,
            otlp_traces_endpoint: None,
        }
    }
}

impl Config {
    /// Reads options from JSON; the others have their defaults. An error names the field.
    pub fn from_json(text: &str) -> Result<Config, ConfigError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize(&mut deserializer)
            .map_err(|error| ConfigError(format!("{}: {}", error.path(), reason(error.inner()))))
    }

    /// How often a request that a worker may have seen goes to another one.
    pub fn retries(&self) -> u32 {
        if self.disable_retries {
            0
        } else {
            self.retry_max_retries
        }
    }

    /// The policies' part of it.
    pub fn policy_settings(&self) -> PolicySettings {
        PolicySettings {
            kind: self.policy,
            cache_threshold: self.cache_threshold,
            balance_abs_threshold: self.balance_abs_threshold,
            balance_rel_threshold: self.balance_rel_threshold,
            max_tree_size: self.max_tree_size,
        }
    }

    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |text: String| Err(ConfigError(text));
        let mut seen = HashSet::new();
        for url in &self.worker_urls {
            let read: WorkerUrl = url.parse()?;
            if !seen.insert(read.to_string()) {
                return fail(format!(
                    "worker_urls: {url:?} is given twice; name each worker once"
                ));
            }
        }
        if !(0.0..=1.0).contains(&self.cache_threshold) {
            return fail(format!(
                "cache_threshold: {} is not between 0 and 1; it is a share of the prompt",
                self.cache_threshold
            ));
        }
        if !(self.balance_rel_threshold >= 1.0 && self.balance_rel_threshold.is_finite()) {
            return fail(format!(
                "balance_rel_threshold: {} is not a number of at least 1; it multiplies the shortest queue",
                self.balance_rel_threshold
            ));
        }
        if self.max_tree_size == 0 {
            return fail(
                "max_tree_size: 0 leaves no room for a prompt; give bytes of memory per worker"
                    .to_owned(),
            );
        }
        if self.cb_failure_threshold == 0 {
            return fail(
                "cb_failure_threshold: must be at least 1; disable_circuit_breaker turns it off"
                    .to_owned(),
            );
        }
        if self.threads > 1024 {
            return fail(format!(
                "threads: {} is more than 1024; 0 means one a core",
                self.threads
            ));
        }
        if self.max_concurrent_requests == Some(0) {
            return fail("max_concurrent_requests: 0 would refuse every request".to_owned());
        }
        if KvEvents::parse(&self.kv_events)? != KvEvents::Off
            && self.policy != PolicyKind::CacheAware
        {
            return fail(format!(
                "kv_events: the policy {} does not use them; choose cache_aware, or off",
                self.policy
            ));
        }
        discovery::names(&self.worker_dns)?;
        for host in &self.allowed_hosts {
            if host != "*" && (host.is_empty() || host.contains(['/', ':', '*', ' '])) {
                return fail(format!(
                    "allowed_hosts: {host:?} is not a host's name; write it without scheme and port, or * for any"
                ));
            }
        }
        for (name, value) in [
            ("dns_interval", self.dns_interval),
            ("eviction_interval", self.eviction_interval),
            ("header_timeout", self.header_timeout),
            ("stall_timeout", self.stall_timeout),
            ("keep_alive_timeout", self.keep_alive_timeout),
            ("worker_keep_alive_timeout", self.worker_keep_alive_timeout),
            ("probe_interval", self.probe_interval),
            ("probe_timeout", self.probe_timeout),
            ("hung_timeout", self.hung_timeout),
            ("request_timeout", self.request_timeout),
        ] {
            if value.is_zero() {
                return fail(format!("{name}: must be more than 0 seconds"));
            }
        }
        Ok(())
    }
}

/// The error's text without its place in the JSON, which a launcher wrote and no user has seen.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(reason) if error.is_data() => reason.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_valid() {
        Config::default().validate().unwrap();
    }

    #[test]
    fn json_leaves_defaults_and_names_what_is_wrong() {
        let config = Config::from_json(r#"{"port": 7, "header_timeout": 0.5, "policy": "random"}"#);
        let config = config.unwrap();
        assert_eq!((config.port, config.policy), (7, PolicyKind::Random));
        assert_eq!(config.header_timeout, Duration::from_millis(500));
        assert_eq!(config.max_tree_size, Config::default().max_tree_size);
        for (json, words) in [
            (
                r#"{"eviction_interval": -1}"#,
                "eviction_interval: -1 is not a number of seconds",
            ),
            (
                r#"{"policy": "fastest"}"#,
                "policy: \"fastest\" is none of random",
            ),
            (r#"{"port": 70000}"#, "port: invalid value"),
            (
                r#"{"cache_treshold": 0.1}"#,
                "unknown field `cache_treshold`",
            ),
        ] {
            let error = Config::from_json(json).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains("at line"), "{error}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        assert!(error(|c| c.cache_threshold = 1.5).contains("cache_threshold: 1.5"));
        assert!(error(|c| c.cache_threshold = f64::NAN).contains("cache_threshold"));
        assert!(error(|c| c.balance_rel_threshold = 0.5).contains("balance_rel_threshold"));
        assert!(error(|c| c.max_tree_size = 0).contains("max_tree_size"));
        assert!(error(|c| c.eviction_interval = Duration::ZERO).contains("eviction_interval"));
        let twice = vec!["http://a:1".to_owned(), "http://a:1/".to_owned()];
        assert!(error(|c| c.worker_urls = twice).contains("given twice"));
    }
}
