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
        Err(failure) => failure.reply(lane),
    }
}

/// `/v1/models/{id}`: the one of that name.
pub async fn one(lane: &Rc<Lane>, headers: &HeaderMap, id: &str) -> Reply {
    match merged(lane, headers).await {
        Ok(models) => match models.iter().find(|model| model["id"] == id) {
            Some(model) => reply::json(StatusCode::OK, model),
            None => reply::unknown_model(id),
        },
        Err(failure) => failure.reply(lane),
    }
}

/// Why there is no list.
struct NoList {
    /// The last worker, and what it answered.
    last: String,
    /// What all of them answered, where that is the client's own doing, or that there is no such list.
    refusal: Option<StatusCode>,
}

impl NoList {
    fn reply(self, lane: &Lane) -> Reply {
        match self.refusal {
            Some(status) => reply::error(status, &format!("no worker lists models: {}", self.last)),
            None => no_worker(lane, &self.last),
        }
    }
}

async fn merged(lane: &Rc<Lane>, headers: &HeaderMap) -> Result<Vec<Value>, NoList> {
    let is_open = |worker: &&Arc<Worker>| {
        !worker.is_draining() && !matches!(worker.health(), Health::Down | Health::Loop)
    };
    let workers = lane
        .shared
        .fleet
        .read()
        .iter()
        .filter(is_open)
        .cloned()
        .collect();
    let question = Question::get("/v1/models").asked_by(headers);
    let mut last = String::new();
    let mut models: Vec<Value> = Vec::new();
    let mut answered = false;
    let answers = ask(&lane.pool, workers, &question).await;
    let refusal = answers.first().and_then(|first| first.status());
    let refusal = refusal.filter(|status| {
        status.is_client_error()
            && answers
                .iter()
                .all(|answer| answer.status() == Some(*status))
    });
    for answer in answers {
        match listed(&answer) {
            Err(why) => last = format!("{}: {why}", answer.worker.url),
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
    if answered {
        Ok(models)
    } else {
        Err(NoList { last, refusal })
    }
}
