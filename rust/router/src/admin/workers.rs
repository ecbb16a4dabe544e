//! `/workers`: shows and changes the fleet while the router runs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Admin, not_allowed, read_body};
use crate::base::config_error::ConfigError;
use crate::base::keys::bearer;
use crate::base::percent;
use crate::fleet::health_flags::Health;
use crate::fleet::worker::{Authorization, Worker};
use crate::proxy::lane::Lane;
use crate::proxy::reply::{self, Reason, Refusal, Reply};
use crate::upstream::worker_url::WorkerUrl;

/// How often a drain with `wait` checks the worker's load.
const IDLE_CHECK: Duration = Duration::from_millis(50);

fn wrong(message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::InvalidParameter, message)
}

/// Answers `/workers`, the paths below it, and the names that older routers have for the same.
pub async fn answer(lane: &Lane, admin: &Admin, request: Request<Incoming>) -> Reply {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let outcome = match path.as_str() {
        "/workers" => match method {
            Method::GET | Method::HEAD => Ok(list(lane, admin)),
            Method::POST => with_parameters(admin, request, |given| add(lane, admin, given)).await,
            Method::DELETE => with_parameters(admin, request, |given| remove(lane, given)).await,
            _ => Ok(not_allowed("GET, POST, DELETE")),
        },
        "/workers/drain" => match method {
            Method::POST => match Parameters::of(admin, request).await {
                Ok(given) => drain(lane, &given).await,
                Err(refusal) => Err(refusal),
            },
            _ => Ok(not_allowed("POST")),
        },
        "/list_workers" => match method {
            Method::GET | Method::HEAD => Ok(urls(lane)),
            _ => Ok(not_allowed("GET")),
        },
        "/add_worker" | "/remove_worker" if method != Method::POST => Ok(not_allowed("POST")),
        "/add_worker" => with_parameters(admin, request, |given| add(lane, admin, given)).await,
        "/remove_worker" => with_parameters(admin, request, |given| remove(lane, given)).await,
        _ => {
            let given = Parameters::of_path(&path["/workers/".len()..]);
            match method {
                Method::GET | Method::HEAD => given
                    .known(lane)
                    .map(|worker| reply::json(StatusCode::OK, &describe(&worker))),
                Method::DELETE => remove(lane, &given),
                _ => Ok(not_allowed("GET, DELETE")),
            }
        }
    };
    outcome.unwrap_or_else(Refusal::into_reply)
}

/// Whether the worker answers, even if only that it is busy. One that is due for its trial counts: if it did not, and no
/// other did, a balancer would send no request that could be the trial.
pub fn is_healthy(worker: &Worker) -> bool {
    matches!(
        worker.health(),
        Health::Up | Health::Busy | Health::HalfOpen
    )
}

/// A worker as JSON, for administrators.
pub fn describe(worker: &Worker) -> Value {
    json!({
        "id": worker.id,
        "url": worker.url,
        "healthy": is_healthy(worker),
        "state": worker.health().name(),
        "draining": worker.is_draining(),
        "models": worker.models().as_deref(),
        "load": worker.load(),
        "requests": worker.requests.load(Relaxed),
        "failures": worker.failures.load(Relaxed),
        "cache_events": worker.cache_events.describe(),
    })
}

fn list(lane: &Lane, admin: &Admin) -> Reply {
    let fleet = lane.proxy.fleet.read();
    let workers: Vec<Value> = fleet.iter().map(|worker| describe(worker)).collect();
    let total = workers.len();
    reply::json(
        StatusCode::OK,
        &json!({"workers": workers, "total": total, "policy": admin.policy}),
    )
}

fn urls(lane: &Lane) -> Reply {
    let fleet = lane.proxy.fleet.read();
    let urls: Vec<&str> = fleet.iter().map(|worker| worker.url.as_str()).collect();
    reply::json(StatusCode::OK, &json!({"urls": urls}))
}

/// A request's parameters, which may be in the query or in a JSON body.
struct Parameters {
    query: String,
    body: Value,
}

async fn with_parameters(
    admin: &Admin,
    request: Request<Incoming>,
    then: impl FnOnce(&Parameters) -> Result<Reply, Refusal>,
) -> Result<Reply, Refusal> {
    then(&Parameters::of(admin, request).await?)
}

impl Parameters {
    async fn of(admin: &Admin, request: Request<Incoming>) -> Result<Parameters, Refusal> {
        let (parts, incoming) = request.into_parts();
        let bytes = read_body(admin, incoming).await?;
        let body = match bytes.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&bytes).map_err(|error| {
                Refusal::new(Reason::InvalidBody, format!(
"the body is not JSON ({error}); the right form is {{\"url\": \"http://host:port\"}}"))
            })?,
        };
        let query = parts.uri.query().unwrap_or_default().to_owned();
        Ok(Parameters { query, body })
    }

    /// Reads the part after `/workers/`: a worker's id or URL.
    fn of_path(rest: &str) -> Parameters {
        let rest = percent::decode(rest);
        let body = match rest.parse::<u32>() {
            Ok(id) => json!({"id": id}),
            Err(_) => json!({"url": rest}),
        };
        Parameters {
            query: String::new(),
            body,
        }
    }

    fn get(&self, name: &str) -> Option<Value> {
        let in_query = self.query.split('&').find_map(|pair| {
            let value = pair.strip_prefix(name)?.strip_prefix('=')?;
            Some(json!(percent::decode(value)))
        });
        in_query.or_else(|| self.body.get(name).cloned())
    }

    /// The URL in `url`, whether or not the fleet has such a worker.
    fn url(&self) -> Result<WorkerUrl, Refusal> {
        let right = "the right form is {\"url\": \"http://host:port\"}, or ?url= in the query";
        match self.get("url") {
            Some(Value::String(url)) => url
                .parse()
                .map_err(|error: ConfigError| wrong(error.to_string())),
            Some(_) => Err(wrong(format!("url: is not a string; {right}"))),
            None => Err(wrong(format!("url: is missing; {right}"))),
        }
    }

    /// `api_key`, from the body only: queries may be logged on the way.
    fn key(&self) -> Result<Option<HeaderValue>, Refusal> {
        match self.body.get("api_key") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(key)) => {
                let value = bearer("api_key", key);
                value.map(Some).map_err(|error| wrong(error.to_string()))
            }
            Some(_) => Err(wrong("api_key: is not a string")),
        }
    }

    /// The worker of the fleet that the parameters name.
    fn known(&self, lane: &Lane) -> Result<Arc<Worker>, Refusal> {
        let fleet = lane.proxy.fleet.read();
        let (found, asked) = match self.body.get("id").and_then(Value::as_u64) {
            Some(id) => (
                fleet.iter().find(|worker| u64::from(worker.id) == id),
                format!("id: no worker {id}"),
            ),
            None => {
                let url = self.url()?;
                (
                    fleet.iter().find(|worker| worker.url == url.as_str()),
                    format!("url: no worker {url}"),
                )
            }
        };
        found.cloned().ok_or_else(|| {
            let urls: Vec<&str> = fleet.iter().map(|worker| worker.url.as_str()).collect();
            let message = format!("{asked}; the workers are: {}", urls.join(", "));
            Refusal::new(Reason::WorkerNotFound, message)
        })
    }

    /// `wait`: seconds, zero if it is not given.
    fn wait(&self) -> Result<Duration, Refusal> {
        let seconds = match self.get("wait") {
            None => return Ok(Duration::ZERO),
            Some(Value::String(text)) => text.parse().ok(),
            Some(value) => value.as_f64(),
        };
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| wrong("wait: is not a number of seconds, 0 or more"))
    }
}

/// Adds a worker, or returns a draining one to service. An added worker is not shown the fleet's key, which is for
/// workers of the configuration.
fn add(lane: &Lane, admin: &Admin, given: &Parameters) -> Result<Reply, Refusal> {
    let fleet = &lane.proxy.fleet;
    let url = given.url()?;
    let authorization = match given.key()? {
        Some(_) if fleet.find(url.as_str()).is_some() => {
            return Err(wrong(
                "api_key: the worker is in the list already, and keeps the key that it has; take it out first",
            ));
        }
        Some(key) => Authorization::Own(key),
        None if admin.has_worker_key => Authorization::Nothing,
        None => Authorization::OfFleet,
    };
    let (worker, is_new) = fleet.add(url, authorization);
    let (status, event) = match is_new {
        true => (StatusCode::CREATED, "worker was added"),
        false => (StatusCode::OK, "worker serves again"),
    };
    tracing::info!(worker = worker.url, "{event}");
    Ok(reply::json(status, &describe(&worker)))
}

/// Removes a worker from the list at once; the requests that it is serving go on to their end.
fn remove(lane: &Lane, given: &Parameters) -> Result<Reply, Refusal> {
    let worker = given.known(lane)?;
    lane.proxy.fleet.remove(&worker);
    tracing::info!(worker = worker.url, "worker was removed");
    Ok(reply::json(StatusCode::OK, &describe(&worker)))
}

/// Gives a worker no more requests, but keeps it in the list. Answers once it is idle, or after `wait`.
async fn drain(lane: &Lane, given: &Parameters) -> Result<Reply, Refusal> {
    let (worker, wait) = (given.known(lane)?, given.wait()?);
    worker.set_draining(true);
    tracing::info!(worker = worker.url, "worker is draining");
    let began = Instant::now();
    // It may have been returned to service meanwhile.
    while worker.load() > 0 && worker.is_draining() && began.elapsed() < wait {
        sleep(IDLE_CHECK).await;
    }
    let mut described = describe(&worker);
    described["idle"] = json!(worker.is_draining() && worker.load() == 0);
    Ok(reply::json(StatusCode::OK, &described))
}
