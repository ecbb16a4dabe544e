//! Keeps track of the models that each worker serves. Workers are asked again and again, since adapters come and go at
//! run time. The lists decide where a request may go only if they differ.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, USER_AGENT};
use hyper::http::request::Parts;
use serde_json::Value;
use sglang_omni_policy::key::scan::scan;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::base::clock::{self, TICK};
use crate::base::percent;
use crate::fleet::fan_out::{Answer, Question, ask};
use crate::fleet::health_flags::Health;
use crate::fleet::worker::{Fleet, Worker};
use crate::upstream::pool::Pool;
use crate::upstream::trust::Trust;

/// How often to look for workers that came up, and how long a list counts as fresh.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const FRESH: Duration = Duration::from_secs(10);

/// Tells a worker that the router asks, and not a client.
const AGENT: HeaderValue = HeaderValue::from_static("sglang-omni-router");

/// The models of the whole fleet.
pub struct Models {
    fleet: Arc<Fleet>,
    differ: AtomicBool,
    /// From this tick on, an unknown model makes the router ask the workers again.
    ask_from: AtomicU32,
    /// The request for a worker's list.
    question: Question,
}

impl Models {
    /// `key` is shown to the fleet's workers.
    pub fn new(fleet: Arc<Fleet>, key: Option<HeaderValue>) -> Models {
        let mut headers = HeaderMap::from_iter([(USER_AGENT, AGENT)]);
        headers.extend(key.map(|key| (AUTHORIZATION, key)));
        Models {
            fleet,
            differ: AtomicBool::new(false),
            ask_from: AtomicU32::new(0),
            question: Question::get("/v1/models").asked_by(&headers),
        }
    }

    /// Whether some worker serves a model that another does not.
    pub fn differ(&self) -> bool {
        self.differ.load(Relaxed)
    }

    /// Whether this request may have the workers asked again: one a second may.
    fn may_ask(&self) -> bool {
        let (now, from) = (clock::now(), self.ask_from.load(Relaxed));
        let next = now.saturating_add(clock::ticks(LOOK_INTERVAL.max(TICK)));
        now >= from
            && self
                .ask_from
                .compare_exchange(from, next, Relaxed, Relaxed)
                .is_ok()
    }

    /// Asks workers for their lists.
    async fn refresh(&self, pool: &Rc<Pool>, workers: Vec<Arc<Worker>>) {
        if workers.is_empty() {
            return;
        }
        for answer in ask(pool, workers, &self.question).await {
            match listed(&answer) {
                Ok(models) => answer.worker.set_models(Some(names(&models))),
                // It has no list, or none for this router.
                Err(_) if answer.status().is_some() => answer.worker.set_models(None),
                Err(_) => {}
            }
        }
        let fleet = self.fleet.read();
        let lists: Vec<_> = fleet.iter().filter_map(|worker| worker.models()).collect();
        let differ = lists.iter().any(|list| *list != lists[0]);
        self.differ.store(differ, Relaxed);
    }

    /// The model that a request names, if no worker has it, even after being asked again.
    pub async fn unknown(&self, pool: &Rc<Pool>, parts: &Parts, body: &[u8]) -> Option<String> {
        if !self.differ() {
            return None;
        }
        let in_body = scan(body, &mut Vec::new()).model;
        let model = &*named(parts, &in_body);
        let is_unknown = || {
            let fleet = self.fleet.read();
            let serving = Serving::of(&fleet, model);
            !fleet.iter().any(|worker| serving.includes(worker))
        };
        if is_unknown() && self.may_ask() {
            let workers = Vec::clone(&self.fleet.read());
            self.refresh(pool, workers).await;
        }
        is_unknown().then(|| String::from_utf8_lossy(model).into_owned())
    }
}

/// Keeps every worker's list until the runtime ends.
pub async fn watch(models: Arc<Models>, trust: Arc<Trust>) {
    let pool = Pool::new(trust);
    let mut asked: HashMap<u32, Instant> = HashMap::new();
    let mut tick = interval(LOOK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let fleet = models.fleet.read().clone();
        let answers = |worker: &Worker| {
            let silent = [Health::Down, Health::Loop, Health::Unknown];
            !silent.contains(&worker.health())
        };
        // A worker that was down may come back with other models.
        let known = |id: u32| fleet.iter().any(|w| w.id == id && answers(w));
        asked.retain(|&id, since| known(id) && since.elapsed() < FRESH);
        let due = |worker: &&Arc<Worker>| answers(worker) && !asked.contains_key(&worker.id);
        let due: Vec<Arc<Worker>> = fleet.iter().filter(due).cloned().collect();
        asked.extend(due.iter().map(|worker| (worker.id, Instant::now())));
        models.refresh(&pool, due).await;
        pool.share_unused();
    }
}

/// The entries of a worker's `/v1/models`.
pub fn listed(answer: &Answer) -> Result<Vec<Value>, String> {
    if answer.ok().is_none() {
        return Err(format!("/v1/models: {}", answer.failure()));
    }
    match answer.json().as_mut().and_then(|body| body.get_mut("data")) {
        Some(Value::Array(models)) => Ok(std::mem::take(models)),
        _ => Err("/v1/models has no list under \"data\"".to_owned()),
    }
}

fn names(models: &[Value]) -> Vec<String> {
    let ids = models.iter().filter_map(|model| model["id"].as_str());
    let mut names: Vec<String> = ids.map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The model that a request names in its body, or else in its query; empty if it names none.
pub fn named<'a>(parts: &'a Parts, in_body: &'a [u8]) -> Cow<'a, [u8]> {
    if !in_body.is_empty() {
        return Cow::Borrowed(in_body);
    }
    let mut pairs = parts.uri.query().unwrap_or_default().split('&');
    let model = pairs.find_map(|pair| pair.strip_prefix("model="));
    match model.unwrap_or_default() {
        model if model.contains(['%', '+']) => {
            Cow::Owned(percent::decode(&model.replace('+', " ")).into_bytes())
        }
        model => Cow::Borrowed(model.as_bytes()),
    }
}

/// Which workers may get a request.
#[derive(Clone, Copy)]
pub enum Serving<'a> {
    Every,
    /// The workers that list it.
    Listing(&'a [u8]),
    /// The workers without a list, because none lists it. One that never came up is not counted: what it serves is not
    /// known, and it cannot serve now.
    Unknown,
    /// The worker of this id, which keeps what the request asks for. No other could answer it.
    Keeper(u32),
}

impl<'a> Serving<'a> {
    /// `model` is empty if none is named.
    pub fn of(fleet: &[Arc<Worker>], model: &'a [u8]) -> Serving<'a> {
        if model.is_empty() {
            Serving::Every
        } else if fleet.iter().any(|worker| worker.lists(model) == Some(true)) {
            Serving::Listing(model)
        } else {
            Serving::Unknown
        }
    }

    pub fn includes(self, worker: &Worker) -> bool {
        match self {
            Serving::Every => true,
            Serving::Listing(model) => worker.lists(model) == Some(true),
            Serving::Unknown => worker.models().is_none() && !worker.flags.never_came_up(),
            Serving::Keeper(id) => worker.id == id,
        }
    }
}
