//! Sends the same request to several workers at once and collects their answers.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue,
    USER_AGENT,
};
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::base::headers::{OWNER, REQUEST_ID};
use crate::fleet::worker::Worker;
use crate::upstream::connection::Upstream;
use crate::upstream::pool::Pool;
use crate::upstream::request_body::RequestBody;

/// Most questions are too rare for a connection to be worth keeping.
const CLOSE: HeaderValue = HeaderValue::from_static("close");

const TIMEOUT: Duration = Duration::from_secs(5);
const LATE: &str = "no answer in 5 s";
const ANSWER_LIMIT: usize = 4 << 20;

/// What every worker is asked.
#[derive(Clone)]
pub struct Question {
    method: Method,
    /// Path and query.
    target: String,
    headers: HeaderMap,
    body: Bytes,
    /// Whether it is asked often enough for connections to be worth keeping.
    is_frequent: bool,
}

impl Question {
    pub fn get(target: &str) -> Question {
        Question {
            method: Method::GET,
            target: target.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            is_frequent: false,
        }
    }

    /// Uses kept connections, of a pool that is swept. The question must change nothing: it is asked again if a
    /// connection turns out to be closed.
    pub fn frequent(mut self) -> Question {
        self.is_frequent = true;
        self
    }

    pub fn post(target: &str, body: Bytes) -> Question {
        Question {
            method: Method::POST,
            body,
            ..Question::get(target)
        }
    }

    /// Asks on behalf of the client whose request has these headers.
    pub fn asked_by(mut self, headers: &HeaderMap) -> Question {
        for name in [AUTHORIZATION, CONTENT_TYPE, USER_AGENT, REQUEST_ID, OWNER] {
            if let Some(value) = headers.get(&name) {
                self.headers.insert(name, value.clone());
            }
        }
        self
    }

    fn request(&self, worker: &Worker) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::whole(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target.parse().expect("the target came from a URI");
        *request.headers_mut() = self.headers.clone();
        worker.authorize(request.headers_mut());
        request.headers_mut().insert(HOST, worker.authority.clone());
        if !self.is_frequent {
            request.headers_mut().insert(CONNECTION, CLOSE);
        }
        if self.method != Method::GET {
            request
                .headers_mut()
                .insert(CONTENT_LENGTH, self.body.len().into());
        }
        request
    }
}

/// The result of asking one worker.
pub struct Answer {
    pub worker: Arc<Worker>,
    /// If there was no answer, why.
    pub outcome: Result<(StatusCode, Bytes), String>,
}

impl Answer {
    /// The body of a successful answer.
    pub fn ok(&self) -> Option<&Bytes> {
        match &self.outcome {
            Ok((status, body)) if status.is_success() => Some(body),
            _ => None,
        }
    }

    pub fn status(&self) -> Option<StatusCode> {
        self.outcome.as_ref().ok().map(|(status, _)| *status)
    }

    /// Whether the worker took the question and did not answer in time.
    pub fn is_late(&self) -> bool {
        matches!(&self.outcome, Err(error) if error == LATE)
    }

    /// Why there was no answer, or none that helps.
    pub fn failure(&self) -> String {
        match &self.outcome {
            Ok((status, _)) => format!("HTTP {status}"),
            Err(error) => error.clone(),
        }
    }

    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(self.ok()?).ok()
    }

    /// The error in its answer, if it has OpenAI's shape.
    pub fn error(&self) -> Option<Value> {
        let (_, body) = self.outcome.as_ref().ok()?;
        let mut body: Value = serde_json::from_slice(body).ok()?;
        let error = body.get_mut("error")?;
        error.get("message")?.is_string().then(|| error.take())
    }

    /// The worker and its answer, as JSON.
    pub fn describe(&self, sees_urls: bool) -> Value {
        let mut entry = json!({"worker": self.worker.name(sees_urls)});
        match &self.outcome {
            Err(error) if sees_urls => entry["error"] = json!(error),
            Err(_) => entry["error"] = json!("no answer"),
            Ok((status, body)) => {
                entry["status"] = json!(status.as_u16());
                entry["answer"] = serde_json::from_slice(body)
                    .unwrap_or_else(|_| json!(String::from_utf8_lossy(body)));
            }
        }
        entry
    }
}

/// Asks the workers at once and waits for all, 5 s at most. Answers are in the order of the workers.
pub async fn ask(pool: &Rc<Pool>, workers: Vec<Arc<Worker>>, question: &Question) -> Vec<Answer> {
    let mut asking = JoinSet::new();
    for (order, worker) in workers.into_iter().enumerate() {
        let (pool, question) = (pool.clone(), question.clone());
        asking.spawn_local(async move {
            let outcome = timeout(TIMEOUT, ask_one(&pool, &worker, &question)).await;
            let outcome = outcome.unwrap_or_else(|_| Err(LATE.to_owned()));
            (order, Answer { worker, outcome })
        });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|&(order, _)| order);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn ask_one(
    pool: &Pool,
    worker: &Worker,
    question: &Question,
) -> Result<(StatusCode, Bytes), String> {
    let (endpoint, limit) = (&worker.endpoint, worker.connect_limit());
    let mut connection = match question.is_frequent {
        true => pool.get(endpoint, limit).await,
        false => pool.open(endpoint, limit).await,
    };
    loop {
        let mut upstream = connection.map_err(|error| error.to_string())?;
        let response = match upstream.send(question.request(worker)).await {
            Ok(response) => response,
            Err(_) if upstream.reused => {
                connection = pool.open(endpoint, limit).await;
                continue;
            }
            Err(error) => return Err(error.into_error().to_string()),
        };
        let status = response.status();
        let body = read(&mut upstream, response.into_body()).await?;
        if question.is_frequent {
            pool.put_back(upstream);
        }
        return Ok((status, body));
    }
}

async fn read(upstream: &mut Upstream, mut incoming: Incoming) -> Result<Bytes, String> {
    let mut read = BytesMut::new();
    loop {
        match poll_fn(|cx| upstream.poll_frame(&mut incoming, cx)).await {
            None => return Ok(read.freeze()),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(frame)) => read.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
        }
        if read.len() > ANSWER_LIMIT {
            return Err(format!("an answer of more than {ANSWER_LIMIT} bytes"));
        }
    }
}
