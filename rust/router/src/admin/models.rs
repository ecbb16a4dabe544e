//! `/v1/models`: the models of all workers, each once.

use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde_json::{Value, json};

use crate::fleet::fan_out::{Answer, Question, ask};
use crate::fleet::health_flags::Health;
use crate::fleet::models::listed;
use crate::fleet::worker::Worker;
use crate::proxy::choice::{LastFailure, no_worker};
use crate::proxy::lane::Lane;
use crate::proxy::reply::{self, Reason, Reply};

pub async fn list(lane: &Rc<Lane>, headers: &HeaderMap, sees_urls: bool) -> Reply {
    match merged(lane, headers, sees_urls).await {
        Ok(models) => reply::json(StatusCode::OK, &json!({"object": "list", "data": models})),
        Err(reply) => reply,
    }
}

/// `/v1/models/{id}`: one model by its name.
pub async fn one(lane: &Rc<Lane>, headers: &HeaderMap, id: &str, sees_urls: bool) -> Reply {
    match merged(lane, headers, sees_urls).await {
        Ok(models) => match models.iter().find(|model| model["id"] == id) {
            Some(model) => reply::json(StatusCode::OK, model),
            None => reply::unknown_model(id),
        },
        Err(reply) => reply,
    }
}

/// The models of all workers, or an error if none of them lists any.
async fn merged(
    lane: &Rc<Lane>,
    headers: &HeaderMap,
    sees_urls: bool,
) -> Result<Vec<Value>, Reply> {
    let workers = asked(&lane.proxy.fleet.read());
    let question = Question::get("/v1/models").asked_by(headers).frequent();
    let mut last = LastFailure::default();
    let mut models: Vec<Value> = Vec::new();
    let mut answered = false;
    let answers = ask(&lane.pool, workers, &question).await;
    let refusal = refused_with(&answers);
    let is_late = answers.iter().any(Answer::is_late);
    for answer in answers {
        match listed(&answer) {
            Err(why) => last = LastFailure::of(&answer.worker, &why, sees_urls),
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
        return Ok(models);
    }
    Err(match refusal {
        Some(status) => {
            let say = |last: &str| format!("no worker lists models; the last one asked was {last}");
            reply::error_of_workers(status, &say(&last.shown), say(&last.logged))
        }
        None if is_late => last.reply(Reason::WorkerTimeout, |last| {
            format!("no worker has listed its models in time; the last one asked was {last}")
        }),
        None => no_worker(lane, &last, sees_urls),
    })
}

/// The workers that may have requests. Workers that are down are asked only if there are no others: requests go
/// to them then too. They may be back, and if not, the answer says what came of asking.
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

/// The status for workers that answered, though not with a list: theirs if all had the same one and it is a
/// client's error, 503 otherwise; None if no worker answered.
fn refused_with(answers: &[Answer]) -> Option<StatusCode> {
    let first = answers.iter().find_map(Answer::status)?;
    let is_unanimous = answers.iter().all(|answer| answer.status() == Some(first));
    Some(if is_unanimous && first.is_client_error() {
        first
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    })
}
