//! Makes each layer's settings from a configuration.

use std::env;
use std::path::PathBuf;

use tokio::sync::watch;

use crate::admin::Admin;
use crate::admin::pages::MetricsPages;
use crate::app::config::Config;
use crate::base::clock;
use crate::base::config_error::ConfigError;
use crate::base::keys::{keys, one_key};
use crate::base::request_id;
use crate::base::stopping::Stopping;
use crate::base::tenants::TenantRules;
use crate::base::tracing_context::Sampler;
use crate::fleet::breaker::Breaker;
use crate::fleet::discovery::{self, Sources};
use crate::fleet::health::Probes;
use crate::front::auth::AccessKeys;
use crate::front::clients::ClientLimits;
use crate::front::cors::Cors;
use crate::front::gate::{self, Gate};
use crate::front::tls::Tls;
use crate::proxy::in_flight::Limits;
use crate::proxy::lane::ProxySettings;
use crate::upstream::span_export::Collector;
use crate::upstream::trust::Trust;
use crate::upstream::worker_url::WorkerUrl;

/// The parts of a configuration, and of files that it names, that may turn out to be wrong.
pub struct Checked {
    pub workers: Vec<WorkerUrl>,
    pub sources: Sources,
    pub gate: Gate,
    pub tls: Option<Tls>,
    pub trust: Trust,
    /// The limits of requests at workers, with the tenants'.
    pub limits: Limits,
    /// Where spans go, and of which requests, if any are made.
    pub tracing: Option<(Collector, Sampler)>,
}

pub fn read(config: &Config) -> Result<Checked, ConfigError> {
    let urls = config.worker_urls.iter().map(|url| url.parse());
    Ok(Checked {
        workers: urls.collect::<Result<_, _>>()?,
        sources: Sources {
            file: config.workers_file.clone(),
            names: discovery::names(&config.worker_dns)?,
            dns_interval: config.dns_interval,
        },
        gate: gate(config)?,
        tls: Tls::read(config.tls_cert_path.clone(), config.tls_key_path.clone())?,
        trust: Trust::read(config.worker_ca_file.clone())?,
        limits: in_flight(config)?,
        tracing: tracing(config, |name| {
            env::var(name).ok().filter(|value| !value.is_empty())
        })?,
    })
}

/// The collector of `otlp_traces_endpoint` or of OpenTelemetry's environment variables, which `env` reads.
fn tracing(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<(Collector, Sampler)>, ConfigError> {
    let of_all = || {
        Some(
            env("OTEL_EXPORTER_OTLP_ENDPOINT")?
                .trim_end_matches('/')
                .to_owned()
                + "/v1/traces",
        )
    };
    let given = config.otlp_traces_endpoint.clone();
    let url = given
        .or_else(|| env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        .or_else(of_all);
    let is_off = env("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || env("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    let Some(url) = url.filter(|_| !is_off) else {
        return Ok(None);
    };
    let headers =
        env("OTEL_EXPORTER_OTLP_TRACES_HEADERS").or_else(|| env("OTEL_EXPORTER_OTLP_HEADERS"));
    // The server beside it takes the environment's name, so that the two can be told apart.
    let service =
        env("OTEL_SERVICE_NAME").map_or("sglang-omni-router".to_owned(), |name| name + "-router");
    let (name, argument) = (env("OTEL_TRACES_SAMPLER"), env("OTEL_TRACES_SAMPLER_ARG"));
    Ok(Some((
        Collector::new(&url, &headers.unwrap_or_default(), service)?,
        Sampler::read(name.as_deref(), argument.as_deref())?,
    )))
}

fn in_flight(config: &Config) -> Result<Limits, ConfigError> {
    let rules = |path: &PathBuf| Ok((path.clone(), TenantRules::read(path)?));
    Ok(Limits {
        concurrent: config.max_concurrent_requests,
        queue_size: config.queue_size,
        queue_timeout: config.queue_timeout,
        tenants: config.tenants_file.as_ref().map(rules).transpose()?,
    })
}

fn gate(config: &Config) -> Result<Gate, ConfigError> {
    let clients = keys("api_key", &config.api_key, config.api_key_file.as_deref())?;
    let worker = one_key(
        "worker_api_key",
        config.worker_api_key.as_deref(),
        config.worker_api_key_file.as_deref(),
    )?;
    let admin = one_key(
        "admin_api_key",
        config.admin_api_key.as_deref(),
        config.admin_api_key_file.as_deref(),
    )?;
    let mut own_names = config.allowed_hosts.clone();
    own_names.push(config.host.clone());
    Ok(Gate {
        keys: AccessKeys::new(clients, admin.map(|(key, _)| key), worker),
        cors: Cors::new(&config.cors_allowed_origins)?,
        own_names,
        shows_urls: config.expose_worker_urls,
        id_headers: gate::id_headers(&config.request_id_headers)?,
    })
}

pub fn proxy(config: &Config) -> ProxySettings {
    ProxySettings {
        max_body_bytes: config.max_body_bytes,
        max_held_bytes: config.max_held_bytes,
        stall_timeout: config.stall_timeout,
        stream_idle_timeout: config.stream_idle_timeout,
        worker_keep_alive_timeout: config.worker_keep_alive_timeout,
        request_timeout: config.request_timeout,
        retries: config.retries(),
        recovery: config.cb_timeout,
        hung_timeout: config.hung_timeout,
        access_log: config.access_log,
    }
}

/// The settings of health checks; this is where the router gets its name.
pub fn probes(config: &Config, keys: &AccessKeys) -> Probes {
    Probes {
        interval: config.probe_interval,
        timeout: config.probe_timeout,
        key: keys.worker.clone(),
        router: request_id::unique(),
    }
}

pub fn breaker(config: &Config) -> Breaker {
    Breaker {
        threshold: (!config.disable_circuit_breaker).then_some(config.cb_failure_threshold),
        recovery: clock::ticks(config.cb_timeout),
    }
}

pub fn admin(
    config: &Config,
    probes: &Probes,
    stopping: watch::Receiver<Stopping>,
    pages: MetricsPages,
) -> Admin {
    Admin {
        router: probes.router.clone(),
        policy: config.policy.name(),
        has_worker_key: probes.key.is_some(),
        body_timeout: config.header_timeout,
        stopping,
        pages,
    }
}

pub fn limits(config: &Config) -> ClientLimits {
    ClientLimits::new(
        config.header_timeout,
        config.keep_alive_timeout,
        config.stall_timeout,
        config.stream_idle_timeout,
    )
}
