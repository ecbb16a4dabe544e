//! Endpoints that ask every worker and show each answer.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use super::workers::describe;
use super::{Admin, read_body};
use crate::fleet::fan_out::{Answer, Question, ask};
use crate::fleet::health_flags::Demotion;
use crate::fleet::worker::Worker;
use crate::proxy::choice::{LastFailure, no_worker};
use crate::proxy::lane::Lane;
use crate::proxy::reply::{self, Reason, Reply};

/// All workers but routers that would ask this router in turn.
fn all_workers(lane: &Lane) -> Vec<Arc<Worker>> {
    let fleet = lane.proxy.fleet.read();
    let leads_on = |worker: &&Arc<Worker>| !worker.flags.is(Demotion::Loop);
    fleet.iter().filter(leads_on).cloned().collect()
}

/// `/get_loads`: each worker's own load, and the requests that the router has in flight there.
pub async fn loads(lane: &Rc<Lane>, headers: &HeaderMap, sees_urls: bool) -> Reply {
    let question = Question::get("/get_load").asked_by(headers);
    let mut answers = ask(&lane.pool, all_workers(lane), &question).await;
    // On a worker that is a router itself the path has another name.
    let is_elsewhere = |answer: &Answer| answer.status() == Some(StatusCode::NOT_FOUND);
    let others: Vec<Arc<Worker>> = answers
        .iter()
        .filter(|answer| is_elsewhere(answer))
        .map(|answer| answer.worker.clone())
        .collect();
    if !others.is_empty() {
        let question = Question::get("/get_loads").asked_by(headers);
        let mut again = ask(&lane.pool, others, &question).await.into_iter();
        for answer in answers.iter_mut().filter(|answer| is_elsewhere(answer)) {
            *answer = again.next().expect("as many answers as workers asked");
        }
    }
    let workers: Vec<Value> = answers
        .iter()
        .map(|answer| {
            let mut entry = answer.describe(sees_urls);
            entry["load"] = json!(answer.json().and_then(|body| load_in(&body)));
            entry["inflight"] = json!(answer.worker.load());
            entry
        })
        .collect();
    reply::json(StatusCode::OK, &json!({"workers": workers}))
}

/// Tokens if a worker counts them, requests otherwise; summed over the parts that it reports.
fn load_in(body: &Value) -> Option<u64> {
    match body {
        Value::Array(parts) => parts.iter().map(load_in).sum(),
        Value::Object(fields) => match fields.get("workers") {
            Some(workers) => load_in(workers),
            None => ["num_tokens", "num_reqs", "load"]
                .iter()
                .find_map(|name| fields.get(*name)?.as_u64()),
        },
        _ => None,
    }
}

/// `/flush_cache`: has every worker flush its cache, and the policy forget the caches that were flushed.
pub async fn flush_cache(lane: &Rc<Lane>, target: &str, headers: &HeaderMap) -> Reply {
    let question = Question::post(target, Bytes::new()).asked_by(headers);
    let answers = ask(&lane.pool, all_workers(lane), &question).await;
    let mut successful: Vec<&str> = Vec::new();
    let mut failed: Vec<Value> = Vec::new();
    for answer in &answers {
        let worker = &answer.worker;
        if answer.ok().is_some() {
            lane.proxy.policy.forget(worker.slot());
            successful.push(&worker.url);
        } else {
            failed.push(json!({"worker": worker.url, "error": answer.failure()}));
        }
    }
    let lacks_it = |answer: &Answer| answer.status() == Some(StatusCode::NOT_FOUND);
    let (status, word) = match (successful.len(), failed.len()) {
        (_, 0) => (StatusCode::OK, "success"),
        (0, _) if answers.iter().all(lacks_it) => (StatusCode::NOT_FOUND, "not_supported"),
        (0, _) => (StatusCode::BAD_GATEWAY, "failed"),
        _ => (StatusCode::PARTIAL_CONTENT, "partial_success"),
    };
    let mut body = json!({
        "status": word,
        "message": format!("Cache flush: {} succeeded, {} failed", successful.len(), failed.len()),
        "workers_flushed": successful.len(),
        "total_workers": answers.len(),
        "successful": successful,
        "failed": failed,
    });
    if !status.is_success() {
        body["error"] = error_of_all(status, &answers, true);
    }
    reply::json(status, &body)
}

/// `/abort_request`: asks every worker, since only the one that runs the request knows it. Clients learn whether it was
/// aborted, but not where.
pub async fn abort_request(
    lane: &Rc<Lane>,
    admin: &Admin,
    target: &str,
    request: Request<Incoming>,
    sees_urls: bool,
) -> Reply {
    let (parts, incoming) = request.into_parts();
    let body = match read_body(admin, incoming).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_reply(),
    };
    let question = Question::post(target, body).asked_by(&parts.headers);
    let answers = ask(&lane.pool, all_workers(lane), &question).await;
    if answers.is_empty() {
        return no_worker(lane, &LastFailure::default(), sees_urls);
    }
    let taken = answers.iter().any(|answer| answer.ok().is_some());
    // SGLang's answer is empty; others say whether they knew the request.
    let aborted = answers
        .iter()
        .filter(|answer| answer.ok().is_some())
        .any(|answer| answer.json().is_none_or(|body| body["success"] != false));
    let status = match answers.first().and_then(Answer::status) {
        _ if taken => StatusCode::OK,
        // If all refuse it alike, the request is wrong.
        Some(status) if answers.iter().all(|other| other.status() == Some(status)) => status,
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut body = json!({"success": aborted});
    if sees_urls {
        body["workers"] = answers.iter().map(|answer| answer.describe(true)).collect();
    }
    if !status.is_success() {
        body["error"] = error_of_all(status, &answers, sees_urls);
    }
    reply::json(status, &body)
}

/// `/start_profile` and `/stop_profile`: asks every worker; the answer has each one's own.
pub async fn profile(
    lane: &Rc<Lane>,
    admin: &Admin,
    target: &str,
    request: Request<Incoming>,
) -> Reply {
    let (parts, incoming) = request.into_parts();
    let body = match read_body(admin, incoming).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_reply(),
    };
    let question = Question::post(target, body).asked_by(&parts.headers);
    let answers = ask(&lane.pool, all_workers(lane), &question).await;
    if answers.is_empty() {
        return no_worker(lane, &LastFailure::default(), true);
    }
    let is_done = |answer: &&Answer| answer.ok().is_some();
    let status = match (answers.iter().filter(is_done).count(), answers.first()) {
        (count, _) if count == answers.len() => StatusCode::OK,
        (0, Some(first)) => match first.status() {
            Some(status) if answers.iter().all(|answer| answer.status() == Some(status)) => status,
            _ => StatusCode::BAD_GATEWAY,
        },
        _ => StatusCode::PARTIAL_CONTENT,
    };
    let told: Vec<Value> = answers.iter().map(|answer| answer.describe(true)).collect();
    let mut body = json!({"workers": told});
    if !status.is_success() {
        body["error"] = error_of_all(status, &answers, true);
    }
    reply::json(status, &body)
}

/// `/traces/ID`: the trace of a request, from the worker that has it.
pub async fn trace(lane: &Rc<Lane>, target: &str, headers: &HeaderMap, sees_urls: bool) -> Reply {
    let question = Question::get(target).asked_by(headers);
    let answers = ask(&lane.pool, all_workers(lane), &question).await;
    if answers.is_empty() {
        return no_worker(lane, &LastFailure::default(), sees_urls);
    }
    if let Some(body) = answers.iter().find_map(Answer::ok) {
        let text = String::from_utf8_lossy(body).into_owned();
        return reply::text(StatusCode::OK, "application/json", text);
    }
    let status = match answers.first().and_then(Answer::status) {
        Some(status) if answers.iter().all(|answer| answer.status() == Some(status)) => status,
        _ => StatusCode::BAD_GATEWAY,
    };
    reply::json(
        status,
        &json!({"error": error_of_all(status, &answers, sees_urls)}),
    )
}

/// `/v1/realtime/calls/{id}/hangup`: asks every worker, since only the one that the call goes to knows it.
pub async fn hang_up(lane: &Rc<Lane>, target: &str, headers: &HeaderMap, sees_urls: bool) -> Reply {
    let question = Question::post(target, Bytes::new()).asked_by(headers);
    let answers = ask(&lane.pool, all_workers(lane), &question).await;
    if answers.is_empty() {
        return no_worker(lane, &LastFailure::default(), sees_urls);
    }
    if answers.iter().any(|answer| answer.ok().is_some()) {
        return reply::text(StatusCode::OK, "text/plain", String::new());
    }
    let status = match answers[0].status() {
        // If all refuse it alike, there is no such call.
        Some(status) if answers.iter().all(|other| other.status() == Some(status)) => status,
        _ => StatusCode::BAD_GATEWAY,
    };
    let body = json!({"error": error_of_all(status, &answers, sees_urls)});
    reply::json(status, &body)
}

/// OpenAI's error if no worker succeeded: the first worker's own if all refuse alike, otherwise each worker's failure.
fn error_of_all(status: StatusCode, answers: &[Answer], sees_urls: bool) -> Value {
    let own = answers.first().filter(|_| status.is_client_error());
    if let Some(error) = own.and_then(Answer::error) {
        return error;
    }
    let told: Vec<String> = answers
        .iter()
        .map(|answer| format!("{}: {}", answer.worker.url, answer.failure()))
        .collect();
    let message = match sees_urls {
        true => format!("no worker did it: {}", told.join("; ")),
        false => format!("none of {} workers did it", answers.len()),
    };
    reply::error_object(status, Reason::WorkerFailed.code(), &message, None)
}

/// `/get_server_info`: information on the router and on every worker.
pub async fn server_info(lane: &Rc<Lane>, admin: &Admin, headers: &HeaderMap) -> Reply {
    let question = Question::get("/get_server_info").asked_by(headers);
    let workers: Vec<Value> = ask(&lane.pool, all_workers(lane), &question)
        .await
        .iter()
        .map(|answer| {
            let mut entry = answer.describe(true);
            entry["router"] = describe(&answer.worker);
            entry
        })
        .collect();
    let body = json!({
        "router": "sglang-omni-router",
        "version": env!("CARGO_PKG_VERSION"),
        "policy": admin.policy,
        "workers_count": workers.len(),
        "workers": workers,
    });
    reply::json(StatusCode::OK, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_summed() {
        for (body, load) in [
            (
                json!([{"num_reqs": 3, "num_tokens": 50}, {"num_tokens": 7}]),
                Some(57),
            ),
            (json!({"running": 2, "num_reqs": 2}), Some(2)),
            (json!({"workers": [{"load": 2}, {"load": 3}]}), Some(5)),
            (json!({"workers": [{"load": 2}, {"load": null}]}), None),
            (json!({"queue": 2}), None),
        ] {
            assert_eq!(load_in(&body), load, "{body}");
        }
    }
}
