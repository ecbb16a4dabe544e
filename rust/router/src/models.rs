//! `/v1/models`: what all workers offer, each model once.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use hyper::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::body::{RequestBody, ResponseBody};
use crate::lane::Lane;
use crate::proxy::no_worker;
use crate::reply::{self, Reply};
use crate::standing::Health;
use crate::worker::{LoadGuard, Worker};

const TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: usize = 4 << 20;

pub async fn merged(lane: &Rc<Lane>, headers: &HeaderMap) -> Reply {
    let fleet = lane.shared.fleet.read().clone();
    let mut asking = JoinSet::new();
    let is_open = |worker: &&Arc<Worker>| !worker.is_draining() && worker.health() != Health::Down;
    for (order, worker) in fleet.iter().filter(is_open).enumerate() {
        let (lane, worker) = (lane.clone(), worker.clone());
        let mut request = Request::get("/v1/models")
            .body(RequestBody::empty())
            .expect("a constant request is valid");
        request.headers_mut().insert(HOST, worker.authority.clone());
        if let Some(key) = headers.get(AUTHORIZATION) {
            request.headers_mut().insert(AUTHORIZATION, key.clone());
        }
        asking.spawn_local(async move {
            let answer = tokio::time::timeout(TIMEOUT, ask(&lane, worker.clone(), request)).await;
            (
                order,
                answer.unwrap_or_else(|_| Err(format!("{}: no answer in 5 s", worker.url))),
            )
        });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|&(order, _)| order);

    let mut failure = String::new();
    let mut models: Vec<Value> = Vec::new();
    let mut answered = false;
    for (_, answer) in answers {
        match answer {
            Err(text) => failure = text,
            Ok(found) => {
                answered = true;
                for model in found {
                    if !models
                        .iter()
                        .any(|known| known.get("id") == model.get("id"))
                    {
                        models.push(model);
                    }
                }
            }
        }
    }
    if !answered {
        return no_worker(lane, &failure);
    }
    reply::json(StatusCode::OK, &json!({"object": "list", "data": models}))
}

async fn ask(
    lane: &Lane,
    worker: Arc<Worker>,
    request: Request<RequestBody>,
) -> Result<Vec<Value>, String> {
    let fail = |what: String| format!("{}: {what}", worker.url);
    let load = LoadGuard::new(worker.clone());
    let mut upstream = lane
        .pool
        .open(&worker)
        .await
        .map_err(|error| fail(error.to_string()))?;
    let response = upstream
        .send(request)
        .await
        .map_err(|error| fail(error.into_error().to_string()))?;
    if response.status() != StatusCode::OK {
        return Err(fail(format!("/v1/models answered {}", response.status())));
    }
    let body = ResponseBody::new(
        response.into_body(),
        Some(upstream),
        lane.pool.clone(),
        load,
    );
    let body = Limited::new(body, ANSWER_LIMIT)
        .collect()
        .await
        .map_err(|error| fail(error.to_string()))?;
    let value: Value =
        serde_json::from_slice(&body.to_bytes()).map_err(|error| fail(error.to_string()))?;
    match value.get("data") {
        Some(Value::Array(models)) => Ok(models.clone()),
        _ => Err(fail("/v1/models has no list under \"data\"".to_owned())),
    }
}
