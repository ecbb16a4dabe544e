//! `/v1/models`: what all workers offer, each model once.

use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde_json::{Value, json};

use crate::fleet::fan_out::{Question, ask};
use crate::fleet::models::listed;
use crate::fleet::standing::Health;
use crate::fleet::worker::Worker;
use crate::front::reply::{self, Reply};
use crate::request::choice::no_worker;
use crate::runtime::lane::Lane;

pub async fn list(lane: &Rc<Lane>, headers: &HeaderMap) -> Reply {
    match merged(lane, headers).await {
        Ok(models) => reply::json(StatusCode::OK, &json!({"object": "list", "data": models})),
        Err(failure) => no_worker(lane, &failure),
    }
}

/// `/v1/models/{id}`: the one of that name.
pub async fn one(lane: &Rc<Lane>, headers: &HeaderMap, id: &str) -> Reply {
    match merged(lane, headers).await {
        Ok(models) => match models.iter().find(|model| model["id"] == id) {
            Some(model) => reply::json(StatusCode::OK, model),
            None => reply::unknown_model(id),
        },
        Err(failure) => no_worker(lane, &failure),
    }
}

async fn merged(lane: &Rc<Lane>, headers: &HeaderMap) -> Result<Vec<Value>, String> {
    let is_open = |worker: &&Arc<Worker>| !worker.is_draining() && worker.health() != Health::Down;
    let workers = lane
        .shared
        .fleet
        .read()
        .iter()
        .filter(is_open)
        .cloned()
        .collect();
    let question = Question::get("/v1/models").asked_by(headers);
    let mut failure = String::new();
    let mut models: Vec<Value> = Vec::new();
    let mut answered = false;
    for answer in ask(&lane.pool, workers, &question).await {
        match listed(&answer) {
            Err(why) => failure = format!("{}: {why}", answer.worker.url),
            Ok(found) => {
                answered = true;
                for model in found {
                    if !models.iter().any(|known| known["id"] == model["id"]) {
                        models.push(model);
                    }
                }
            }
        }
    }
    if answered { Ok(models) } else { Err(failure) }
}
