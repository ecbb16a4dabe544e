//! The router's own endpoints; every other path goes to a worker.

mod every_worker;
mod fleet;
mod metrics;
mod models;
pub mod pages;
pub mod scrape;
pub mod worker_metrics;
mod workers;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::admin::pages::{MetricsPages, Wanted};
use crate::base::headers::{ROUTERS, SERVERS};
use crate::base::percent;
use crate::base::prometheus;
use crate::base::stopping::Stopping;
use crate::fleet::loop_detection;
use crate::fleet::servers;
use crate::fleet::worker::Worker;
use crate::proxy::lane::Lane;
use crate::proxy::record::RequestRecord;
use crate::proxy::reply::{self, Reason, Refusal, Reply};

const BODY_LIMIT: usize = 64 << 10;
const CALLS: &str = "/v1/realtime/calls/";

/// What the router's own endpoints need beside the proxy.
pub struct Admin {
    /// This router's name, which no other router has.
    pub router: String,
    /// The policy's name.
    pub policy: &'static str,
    /// Whether workers of the configuration are shown a key that no other worker may see.
    pub has_worker_key: bool,
    /// How long the body of a request to the router itself may take.
    pub body_timeout: Duration,
    pub stopping: watch::Receiver<Stopping>,
    pub pages: MetricsPages,
}

/// Answers a request for the router itself, or returns it.
pub async fn answer(
    lane: &Rc<Lane>,
    admin: &Admin,
    record: &RequestRecord,
    request: Request<Incoming>,
) -> Result<Reply, Request<Incoming>> {
    let sees_urls = record.sees_urls;
    let method = request.method().clone();
    let is_read = matches!(method, Method::GET | Method::HEAD);
    let is_post = method == Method::POST;
    let headers = request.headers();
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    match request.uri().path() {
        "/health" if is_read => Ok(health(lane, admin)),
        "/readiness" if is_read => Ok(readiness(lane, admin)),
        "/liveness" if is_read => Ok(reply::text(StatusCode::OK, "text/plain", "OK")),
        "/metrics" if is_read => {
            let wanted = Wanted {
                sees_urls,
                of_workers: record.administers,
                key: match record.administers {
                    true => headers.get(AUTHORIZATION).cloned(),
                    false => None,
                },
            };
            Ok(match admin.pages.get(wanted).await {
                Some(page) => reply::page(prometheus::CONTENT_TYPE, page),
                // The writers end when the router begins to shut down.
                None => {
                    let text = metrics::render(&lane.proxy, sees_urls);
                    reply::text(StatusCode::OK, prometheus::CONTENT_TYPE, text)
                }
            })
        }
        path if is_read && (path == "/fleet" || path.starts_with("/fleet/")) => {
            Ok(fleet::answer(lane, admin, target, headers, sees_urls).await)
        }
        "/v1/models" if is_read => Ok(models::list(lane, headers, sees_urls).await),
        "/get_loads" if is_read => Ok(every_worker::loads(lane, headers, sees_urls).await),
        "/get_server_info" | "/server_info" if is_read => {
            Ok(every_worker::server_info(lane, admin, headers).await)
        }
        "/flush_cache" if is_post => Ok(every_worker::flush_cache(lane, target, headers).await),
        "/flush_cache" => Ok(not_allowed("POST")),
        "/start_profile" | "/stop_profile" if is_post => {
            let target = target.to_owned();
            Ok(every_worker::profile(lane, admin, &target, request).await)
        }
        "/start_profile" | "/stop_profile" => Ok(not_allowed("POST")),
        "/abort_request" if is_post => {
            let target = target.to_owned();
            Ok(every_worker::abort_request(lane, admin, &target, request, sees_urls).await)
        }
        "/workers" | "/workers/drain" | "/list_workers" | "/add_worker" | "/remove_worker" => {
            Ok(workers::answer(lane, admin, request).await)
        }
        path if is_post && path.starts_with(CALLS) && path.ends_with("/hangup") => {
            Ok(every_worker::hang_up(lane, target, headers, sees_urls).await)
        }
        path if path.starts_with("/workers/") => Ok(workers::answer(lane, admin, request).await),
        path if is_read && path.starts_with("/v1/models/") => {
            let id = percent::decode(&path["/v1/models/".len()..]);
            Ok(models::one(lane, headers, &id, sees_urls).await)
        }
        path if is_read && path.starts_with("/traces/") => {
            Ok(every_worker::trace(lane, target, headers, sees_urls).await)
        }
        _ => Err(request),
    }
}

fn not_allowed(methods: &'static str) -> Reply {
    let mut reply = reply::error(
        Reason::MethodNotAllowed,
        &format!("this path takes {methods}"),
    );
    reply
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(methods));
    reply
}

/// The number of workers that answer their health checks and take requests.
fn healthy(lane: &Lane) -> usize {
    let is_healthy = |worker: &&Arc<Worker>| workers::is_healthy(worker) && !worker.is_draining();
    lane.proxy.fleet.read().iter().filter(is_healthy).count()
}

fn health(lane: &Lane, admin: &Admin) -> Reply {
    let (healthy, total) = (healthy(lane), lane.proxy.fleet.read().len());
    let (status, word) = match healthy {
        0 if loop_detection::is_closed(&lane.proxy.fleet) => {
            (StatusCode::LOOP_DETECTED, "unhealthy")
        }
        0 => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy"),
        _ => (StatusCode::OK, "healthy"),
    };
    let mut reply = reply::json(
        status,
        &json!({"status": word, "workers": {"healthy": healthy, "total": total}}),
    );
    let routers = loop_detection::list(&lane.proxy.fleet, &admin.router);
    reply.headers_mut().insert(ROUTERS, routers);
    if let Some(servers) = servers::list(&lane.proxy.fleet) {
        reply.headers_mut().insert(SERVERS, servers);
    }
    reply
}

/// Whether a load balancer should send requests here: not if no worker is healthy, nor once the router is draining.
fn readiness(lane: &Lane, admin: &Admin) -> Reply {
    let healthy = healthy(lane);
    let reason = if *admin.stopping.borrow() != Stopping::No {
        Some("the router is shutting down")
    } else if healthy == 0 {
        Some("no worker is healthy")
    } else {
        None
    };
    let mut body = json!({
        "status": if reason.is_none() { "ready" } else { "not ready" },
        "healthy_workers": healthy,
        "total_workers": lane.proxy.fleet.read().len(),
    });
    match reason {
        None => reply::json(StatusCode::OK, &body),
        Some(reason) => {
            body["reason"] = json!(reason);
            reply::json(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    }
}

/// Reads the body of a request to the router itself, which is short.
async fn read_body(admin: &Admin, incoming: Incoming) -> Result<Bytes, Refusal> {
    let reading = Limited::new(incoming, BODY_LIMIT).collect();
    match timeout(admin.body_timeout, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => {
            let message = format!("the body could not be read: {error}");
            Err(Refusal::new(Reason::InvalidBody, message))
        }
        Err(_) => {
            let message = "the rest of the request body did not arrive in time";
            Err(Refusal::new(Reason::RequestTimeout, message))
        }
    }
}
