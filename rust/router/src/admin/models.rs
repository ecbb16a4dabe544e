//! `/v1/models`: what all workers offer, each model once.

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
        Err(failure) => failure.reply(lane, sees_urls),
    }
}

/// `/v1/models/{id}`: the one of that name.
pub async fn one(lane: &Rc<Lane>, headers: &HeaderMap, id: &str, sees_urls: bool) -> Reply {
    match merged(lane, headers, sees_urls).await {
        Ok(models) => match models.iter().find(|model| model["id"] == id) {
            Some(model) => reply::json(StatusCode::OK, model),
            None => reply::unknown_model(id),
        },
        Err(failure) => failure.reply(lane, sees_urls),
    }
}

/// Why there is no list, with the worker that was asked last and what came of it.
enum NoList {
    /// Workers answered, though not with a list. The status is theirs if all had the same one and it is a client's
    /// error, and 503 otherwise.
    Refused(StatusCode, LastFailure),
    /// One took the question and said nothing.
    Late(LastFailure),
    /// None could be asked; the text is empty if none may be.
    Unasked(LastFailure),
}

impl NoList {
    fn reply(self, lane: &Lane, sees_urls: bool) -> Reply {
        match self {
            NoList::Refused(status, last) => {
                let say =
                    |last: &str| format!("no worker lists models; the last one asked was {last}");
                reply::error_of_workers(status, &say(&last.shown), say(&last.logged))
            }
            NoList::Late(last) => {
                let say = |last: &str| {
                    format!(
                        "no worker has listed its models in time; the last one asked was {last}"
                    )
                };
                reply::error_logged(Reason::WorkerTimeout, &say(&last.shown), say(&last.logged))
            }
            NoList::Unasked(last) => no_worker(lane, &last, sees_urls),
        }
    }
}

async fn merged(
    lane: &Rc<Lane>,
    headers: &HeaderMap,
    sees_urls: bool,
) -> Result<Vec<Value>, NoList> {
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
    match refusal {
        _ if answered => Ok(models),
        Some(status) => Err(NoList::Refused(status, last)),
        None if is_late => Err(NoList::Late(last)),
        None => Err(NoList::Unasked(last)),
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
