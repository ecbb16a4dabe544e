//! Sends the spans of requests to an OpenTelemetry collector, as OTLP's JSON over HTTP.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Method, Request, Uri};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout, timeout_at};

use crate::base::config_error::ConfigError;
use crate::base::percent;
use crate::base::tracing_context::{Span, nanos};
use crate::upstream::connection::Upstream;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::request_body::RequestBody;
use crate::upstream::trust::Trust;
use crate::upstream::worker_url::WorkerUrl;

/// Spans that may wait to be sent.
pub const QUEUE: usize = 4096;
/// Spans of one message, and how long the first waits for others.
const BATCH: usize = 512;
const INTERVAL: Duration = Duration::from_secs(1);
/// How often the end of the router is looked for.
const LOOK: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(5);
const LAST_TIMEOUT: Duration = Duration::from_secs(1);
/// Shorter than a worker's id could ever make it: no worker has this one.
const NO_WORKER: u32 = u32::MAX;

/// Where spans go, and what is said with all of them.
pub struct Collector {
    endpoint: Arc<Endpoint>,
    authority: HeaderValue,
    path: Uri,
    headers: HeaderMap,
    service: String,
}

impl Collector {
    /// Args as in OpenTelemetry's environment variables: the URL for traces (`/v1/traces` is added to one without a
    /// path), headers as `name=value,...`, and the name of the service.
    pub fn new(url: &str, headers: &str, service: String) -> Result<Collector, ConfigError> {
        let wrong = |why: &str| {
            ConfigError(format!(
                "otlp_traces_endpoint: {url:?}: {why}; give an http(s) URL like http://localhost:4318/v1/traces"
            ))
        };
        let uri: Uri = url.trim().parse().map_err(|_| wrong("is not a URL"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong("lacks a scheme or a host"));
        };
        let origin: WorkerUrl = format!("{scheme}://{authority}")
            .parse()
            .map_err(|_| wrong("cannot be connected to"))?;
        let path = match uri.path_and_query().map(|path| path.as_str()) {
            None | Some("" | "/") => "/v1/traces",
            Some(path) => path,
        };
        Ok(Collector {
            endpoint: Arc::new(Endpoint::new(NO_WORKER, &origin)),
            authority: origin.authority,
            path: path.parse().map_err(|_| wrong("has a wrong path"))?,
            headers: read_headers(headers)?,
            service,
        })
    }

    /// Sends what comes, in batches, until `is_over` says that no more will.
    pub async fn export(
        self,
        trust: &Trust,
        mut spans: Receiver<Span>,
        is_over: impl Fn() -> bool,
    ) {
        let mut is_failing = false;
        loop {
            let mut batch = Vec::new();
            let over = is_over();
            if let Ok(Some(first)) = timeout(LOOK, spans.recv()).await {
                batch.push(first);
                let until = Instant::now() + INTERVAL;
                while batch.len() < BATCH && !is_over() {
                    let next = Instant::now() + LOOK;
                    match timeout_at(next.min(until), spans.recv()).await {
                        Ok(Some(span)) => batch.push(span),
                        _ if Instant::now() >= until => break,
                        _ => {}
                    }
                }
            }
            if over {
                while let Ok(span) = spans.try_recv() {
                    batch.push(span);
                }
            }
            if !batch.is_empty() {
                let limit = if over { LAST_TIMEOUT } else { TIMEOUT };
                let sent = timeout(limit, self.send(trust, &batch)).await;
                let sent = sent.unwrap_or_else(|_| Err("no answer in time".to_owned()));
                match (sent, is_failing) {
                    (Err(why), false) => {
                        tracing::warn!(%why, "spans could not be sent to the collector");
                        is_failing = true;
                    }
                    (Ok(()), true) => {
                        tracing::info!("spans reach the collector again");
                        is_failing = false;
                    }
                    _ => {}
                }
            }
            if over {
                return;
            }
        }
    }

    async fn send(&self, trust: &Trust, batch: &[Span]) -> Result<(), String> {
        let address = &self.endpoint.address;
        if address.is_name() {
            address.look_up().await;
        }
        let opened = Upstream::open(&self.endpoint, trust, TIMEOUT).await;
        let mut upstream = opened.map_err(|error| error.to_string())?;
        let body = Bytes::from(self.message(batch).to_string());
        let length = body.len();
        let mut request = Request::new(RequestBody::whole(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        headers.extend(self.headers.clone());
        headers.insert(CONTENT_LENGTH, length.into());
        let answer = upstream.send(request).await;
        let answer = answer.map_err(|error| error.into_error().to_string())?;
        let status = answer.status();
        let mut body = answer.into_body();
        // Read to its end: a connection that is cut may look to the collector like a client that failed.
        while let Some(Ok(_)) = poll_fn(|cx| upstream.poll_frame(&mut body, cx)).await {}
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("HTTP {status}")),
        }
    }

    fn message(&self, batch: &[Span]) -> Value {
        json!({"resourceSpans": [{
            "resource": {"attributes": [attribute("service.name", &self.service)]},
            "scopeSpans": [{
                "scope": {"name": "sglang-omni-router", "version": env!("CARGO_PKG_VERSION")},
                "spans": batch.iter().map(span).collect::<Vec<_>>(),
            }],
        }]})
    }
}

fn read_headers(text: &str) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let read = pair.split_once('=').and_then(|(name, value)| {
            let name: HeaderName = name.trim().to_ascii_lowercase().parse().ok()?;
            Some((
                name,
                HeaderValue::try_from(percent::decode(value.trim())).ok()?,
            ))
        });
        let Some((name, value)) = read else {
            // Without the value, which may be a key.
            return Err(ConfigError(
                "OTEL_EXPORTER_OTLP_HEADERS: must be name=value, several separated by commas"
                    .to_owned(),
            ));
        };
        headers.insert(name, value);
    }
    Ok(headers)
}

/// A request's span as OTLP has it; attributes by OpenTelemetry's conventions for HTTP.
fn span(span: &Span) -> Value {
    let context = &span.context;
    let mut attributes = vec![
        attribute("http.request.method", &span.method),
        attribute("url.path", &span.path),
        attribute("http.route", span.route),
        number("http.response.status_code", span.status.into()),
        attribute("sglang_omni.request_id", &span.request_id),
        number("sglang_omni.router.attempts", span.attempts.into()),
        attribute("sglang_omni.router.end", span.end),
    ];
    if let Some(worker) = &span.worker {
        attributes.push(attribute("server.address", worker));
    }
    let mut events = Vec::new();
    if let Some(first) = span.first_byte {
        events.push(json!({
            "timeUnixNano": nanos(span.began + first).to_string(), "name": "first byte",
        }));
    }
    let mut value = json!({
        "traceId": format!("{:032x}", context.trace),
        "spanId": format!("{:016x}", context.span),
        "name": format!("{} {}", span.method, span.route),
        "kind": 2, // a server's
        "startTimeUnixNano": nanos(span.began).to_string(),
        "endTimeUnixNano": nanos(span.began + span.took).to_string(),
        "attributes": attributes,
        "events": events,
        "status": {"code": if span.status >= 500 { 2 } else { 0 }},
    });
    if let Some(parent) = context.parent {
        value["parentSpanId"] = json!(format!("{parent:016x}"));
    }
    if let Some(state) = &context.state {
        value["traceState"] = json!(state);
    }
    value
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// 64-bit numbers are strings in OTLP's JSON.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(url: &str, headers: &str) -> String {
        let made = Collector::new(url, headers, "a".to_owned());
        made.err().expect("it was taken").to_string()
    }

    #[test]
    fn a_url_without_a_path_gets_the_usual_one() {
        for (url, path) in [
            ("http://collector:4318", "/v1/traces"),
            ("http://collector:4318/", "/v1/traces"),
            ("http://collector:4318/otlp?x=1", "/otlp?x=1"),
        ] {
            let made = Collector::new(url, "Authorization=Basic%20abc, b=c", "a".to_owned());
            let made = made.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(made.path.to_string(), path);
            assert_eq!(made.headers["authorization"], "Basic abc");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(wrong("collector:4318", "").contains("http://localhost:4318/v1/traces"));
        assert!(wrong("grpc://collector:4317", "").contains("otlp_traces_endpoint"));
        let text = wrong("http://a", "secret");
        assert!(text.contains("OTEL_EXPORTER_OTLP_HEADERS") && !text.contains("secret"));
    }
}
