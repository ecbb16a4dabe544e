//! `/v1/models`: what all workers offer, each model once.

use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde_json::{Value, json};

use crate::fleet::fan_out::{Answer, Question, ask};
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
    /// What all of them answered, where that is the client's own doing, or that there is no such list; 503
    /// where some answered, though not with a list.
    refusal: Option<StatusCode>,
}

impl NoList {
    fn reply(self, lane: &Lane) -> Reply {
        match self.refusal {
            Some(status) => {
                let message = format!("no worker lists models: {}", self.last);
                reply::error_of_workers(status, &message)
            }
            None => no_worker(lane, &self.last),
        }
    }
}

async fn merged(lane: &Rc<Lane>, headers: &HeaderMap) -> Result<Vec<Value>, NoList> {
    let workers = asked(&lane.shared.fleet.read());
    let question = Question::get("/v1/models").asked_by(headers);
    let mut last = String::new();
    let mut models: Vec<Value> = Vec::new();
    let mut answered = false;
    let answers = ask(&lane.pool, workers, &question).await;
    let refusal = refused_with(&answers);
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

/// The workers that may have requests. Ones that are down are asked if there are no others, as requests are
/// sent to them then: they may be back, and if not, the answer says what came of asking.
fn asked(fleet: &[Arc<Worker>]) -> Vec<Arc<Worker>> {
    let takes = |worker: &&Arc<Worker>| !worker.is_draining() && worker.health() != Health::Loop;
    let takers = || fleet.iter().filter(takes).cloned();
    let is_open = |worker: &Arc<Worker>| worker.health() != Health::Down;
    let open: Vec<Arc<Worker>> = takers().filter(is_open).collect();
    if open.is_empty() {
        takers().collect()
    } else {
        open
    }
}

fn refused_with(answers: &[Answer]) -> Option<StatusCode> {
    let first = answers.iter().find_map(Answer::status)?;
    let is_unanimous = answers.iter().all(|answer| answer.status() == Some(first));
    Some(if is_unanimous && first.is_client_error() {
        first
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    })
}
