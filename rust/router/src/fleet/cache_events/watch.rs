//! Follows every worker that publishes events, on a thread of its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use sglang_omni_policy::Policy;
use sglang_omni_policy::blocks::event::Coverage;
use tokio::task::{AbortHandle, JoinSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::batch::BlockGroup;
use super::source::{EventSource, KvEvents};
use super::subscription::Subscription;
use crate::fleet::fan_out::{Question, ask};
use crate::fleet::health_flags::Health;
use crate::fleet::worker::{Fleet, Worker};
use crate::upstream::pool::Pool;
use crate::upstream::worker_url::WorkerUrl;

/// How often to look for workers that came or went.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause before a worker's events are tried again, the first one and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// When a worker that publishes nothing is asked again: it may have been started again with other options.
const ASK_AGAIN: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct EventWatch {
    pub fleet: Arc<Fleet>,
    pub policy: Arc<dyn Policy>,
    pub option: KvEvents,
    pub pool: Rc<Pool>,
    /// The key that is shown to the fleet's workers.
    pub key: Option<HeaderValue>,
}

impl EventWatch {
    /// Follows the workers that the fleet has, until the runtime ends.
    pub async fn watch(self) {
        let mut followed: HashMap<u32, Following> = HashMap::new();
        let mut tick = interval(LOOK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let workers = self.fleet.read().clone();
            followed.retain(|id, _| workers.iter().any(|worker| worker.id == *id));
            for worker in workers.iter() {
                followed.entry(worker.id).or_insert_with(|| {
                    let task = spawn_local(self.clone().follow(worker.clone()));
                    Following(task.abort_handle())
                });
            }
        }
    }

    /// Follows one worker, again and again.
    async fn follow(self, worker: Arc<Worker>) {
        let mut pause = FIRST_PAUSE;
        loop {
            while !answers(&worker) {
                sleep(LOOK_INTERVAL).await;
            }
            let source = match &self.option {
                KvEvents::As(source) => Ok(Some(source.clone())),
                _ => self.ask(&worker).await,
            };
            let why = match source {
                Ok(Some(source)) => {
                    let before = worker.cache_events.batches();
                    let why = self.follow_all(&worker, source).await;
                    if worker.cache_events.batches() > before {
                        pause = FIRST_PAUSE;
                    }
                    why
                }
                Ok(None) => {
                    sleep(ASK_AGAIN).await;
                    continue;
                }
                Err(why) => why,
            };
            // Said once, and not at every attempt.
            if pause == FIRST_PAUSE {
                tracing::warn!(
                    worker = worker.url,
                    why,
                    "a worker's cache events have ended"
                );
            }
            sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn ask(&self, worker: &Arc<Worker>) -> Result<Option<EventSource>, String> {
        let mut headers = HeaderMap::new();
        headers.extend(self.key.clone().map(|key| (AUTHORIZATION, key)));
        // The second name is SGLang's from now on.
        for path in ["/get_server_info", "/server_info"] {
            let question = Question::get(path).asked_by(&headers);
            for answer in ask(&self.pool, vec![worker.clone()], &question).await {
                match answer.json() {
                    Some(info) => return EventSource::of_server_info(&info),
                    None if answer.status().is_some() => {}
                    None => return Err(format!("{path}: {}", answer.failure())),
                }
            }
        }
        Ok(None)
    }

    /// Follows all ranks until one of them ends, and forgets what they had. Returns why it ended.
    async fn follow_all(&self, worker: &Arc<Worker>, source: EventSource) -> String {
        let forgetting = Forgetting {
            worker: worker.clone(),
            policy: self.policy.clone(),
        };
        let Ok(url) = worker.url.parse::<WorkerUrl>() else {
            return "its URL is none".to_owned();
        };
        let known = Rc::new(RefCell::new(vec![Coverage::None; source.ranks.into()]));
        let mut ranks = JoinSet::new();
        for rank in 0..source.ranks {
            let subscription = Subscription {
                worker: worker.clone(),
                rank: rank.into(),
                host: url.host.clone(),
                port: source.port + rank,
                replay_port: source.replay_port.map(|port| port + rank),
                topic: source.topic.clone(),
                group: BlockGroup::default(),
                coverage: Coverage::None,
                next: None,
                events: Vec::new(),
            };
            let (known, policy, worker) = (known.clone(), self.policy.clone(), worker.clone());
            ranks.spawn_local(async move {
                let Some(blocks) = policy.blocks() else {
                    return "the policy uses no events".to_owned();
                };
                let covers = |rank: u32, coverage: Coverage| {
                    let mut known = known.borrow_mut();
                    if known[rank as usize] == coverage {
                        return;
                    }
                    known[rank as usize] = coverage;
                    let least = known.iter().min().copied().unwrap_or_default();
                    blocks.cover(worker.slot(), least);
                    worker.cache_events.cover(least);
                    tracing::info!(
                        worker = worker.url,
                        rank,
                        coverage = least.name(),
                        "cache events come"
                    );
                };
                subscription.follow(blocks, covers).await.to_string()
            });
        }
        let ended = ranks.join_next().await;
        drop(ranks);
        drop(forgetting);
        match ended {
            Some(Ok(why)) => why,
            _ => "a task of the router's own failed".to_owned(),
        }
    }
}

fn answers(worker: &Worker) -> bool {
    let silent = [Health::Down, Health::Loop, Health::Unknown];
    !silent.contains(&worker.health())
}

/// Forgets what events said of a worker when they end, whatever the reason.
struct Forgetting {
    worker: Arc<Worker>,
    policy: Arc<dyn Policy>,
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.worker.cache_events.cover(Coverage::None);
        if let Some(blocks) = self.policy.blocks() {
            blocks.forget(self.worker.slot());
        }
    }
}

/// A worker's task, which ends when the worker leaves the fleet.
struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}
