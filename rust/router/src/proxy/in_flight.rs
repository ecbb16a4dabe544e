//! Limits how many requests are at workers at once, and lets others wait for their turn in a [`fair_queue`].
//!
//! [`fair_queue`]: super::fair_queue

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hyper::HeaderMap;
use tokio::sync::oneshot::{self, Sender};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::base::config_error::ConfigError;
use crate::base::tenants::TenantRules;
use crate::proxy::fair_queue::{FairQueue, TenantName, Turn};
use crate::proxy::no_permit::NoPermit;
use crate::proxy::rates::Buckets;
use crate::proxy::turn_pace::TurnPace;
use crate::proxy::wish::{Wish, share};

/// Tenants whose rates are remembered; then those that have sent nothing lately are forgotten.
const MOST_BUCKETS: usize = 10_000;
/// What tenants without a rule of their own are called in metrics.
const OTHERS: &str = "other";

/// The limits of a configuration.
pub struct Limits {
    /// Requests at workers at once.
    pub concurrent: Option<usize>,
    pub queue_size: usize,
    pub queue_timeout: Duration,
    pub tenants: Option<(PathBuf, TenantRules)>,
}

/// A tenant's requests.
#[derive(Clone, Debug, Default)]
pub struct TenantCounts {
    pub running: u64,
    pub waiting: u64,
    pub admitted: u64,
    pub refused: u64,
}

/// The limit for all lanes together; None if nothing is limited.
pub struct InFlight(Option<Arc<Turns>>);

struct Turns {
    limit: Option<usize>,
    queue_size: usize,
    queue_timeout: Duration,
    file: Option<PathBuf>,
    rules: ArcSwap<TenantRules>,
    state: Mutex<State>,
}

type Outcome = Result<Permit, NoPermit>;

struct State {
    queue: FairQueue<Sender<Outcome>>,
    pace: TurnPace,
    buckets: HashMap<TenantName, Buckets>,
    /// Only of tenants with a rule of their own, and of the others together.
    counts: HashMap<TenantName, TenantCounts>,
}

impl InFlight {
    pub fn new(limits: Limits) -> Self {
        let is_limited = limits.concurrent.is_some() || limits.tenants.is_some();
        let turns = is_limited.then(|| {
            let (file, rules) = limits.tenants.unzip();
            let rules = rules.unwrap_or_else(TenantRules::without_file);
            Arc::new(Turns {
                limit: limits.concurrent,
                queue_size: limits.queue_size,
                queue_timeout: limits.queue_timeout,
                file,
                state: Mutex::new(State {
                    queue: FairQueue::new(
                        limits.concurrent.unwrap_or(usize::MAX),
                        limits.queue_size,
                        rises_after(&rules),
                    ),
                    pace: TurnPace::default(),
                    buckets: HashMap::new(),
                    counts: HashMap::new(),
                }),
                rules: ArcSwap::from_pointee(rules),
            })
        });
        InFlight(turns)
    }

    pub fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// What the request says of its turn, or which header is wrong; None if nothing is limited.
    pub fn wish(
        &self,
        tenant: Option<TenantName>,
        headers: &HeaderMap,
    ) -> Result<Option<Box<Wish>>, String> {
        let Some(turns) = &self.0 else {
            return Ok(None);
        };
        let wish = Wish::read(turns.rules.load_full(), tenant, headers)?;
        Ok(Some(Box::new(wish)))
    }

    /// An error if such a request would be refused a permit now.
    pub fn has_room(&self, wish: &Wish) -> Result<(), NoPermit> {
        let Some(turns) = &self.0 else { return Ok(()) };
        let mut state = turns.state();
        if !state
            .queue
            .refuses((&wish.tenant, wish.share()), wish.class)
        {
            return Ok(());
        }
        turns.count(&mut state, &wish.tenant).refused += 1;
        Err(turns.full(&mut state))
    }

    /// Takes a permit for a request of so many tokens, or waits for one.
    pub async fn enter(
        &self,
        wish: Option<Box<Wish>>,
        tokens: impl FnOnce() -> u64,
    ) -> Result<Option<Permit>, NoPermit> {
        match (&self.0, wish) {
            // In a box, so that requests that need no permit do not carry the room of those that wait for one.
            (Some(turns), Some(wish)) => {
                let turn = Box::pin(turns.enter(wish, tokens() as f64));
                turn.await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Requests that wait for a permit.
    pub fn waiting(&self) -> usize {
        let turns = self.0.as_ref();
        turns.map_or(0, |turns| turns.state().queue.waiting())
    }

    /// The requests of each tenant with a rule of its own, and of the others, if there are such rules.
    pub fn tenants(&self) -> Vec<(String, TenantCounts)> {
        let Some(turns) = self.0.as_ref().filter(|turns| turns.file.is_some()) else {
            return Vec::new();
        };
        let mut state = turns.state();
        let now: Vec<(TenantName, usize, usize)> = state
            .queue
            .tenants()
            .map(|(name, running, waiting)| (name.clone(), running, waiting))
            .collect();
        for counts in state.counts.values_mut() {
            (counts.running, counts.waiting) = (0, 0);
        }
        for (name, running, waiting) in now {
            let counts = turns.count(&mut state, &name);
            counts.running += running as u64;
            counts.waiting += waiting as u64;
        }
        let mut tenants: Vec<(String, TenantCounts)> = state
            .counts
            .iter()
            .map(|(name, counts)| (name.to_string(), counts.clone()))
            .collect();
        tenants.sort_by(|one, other| one.0.cmp(&other.0));
        tenants
    }

    /// Reads the tenants' file again whenever a reload is asked for.
    pub async fn watch(&self, mut reload: watch::Receiver<()>) {
        while reload.changed().await.is_ok() {
            let Some((turns, file)) = self
                .0
                .as_ref()
                .and_then(|turns| Some((turns, turns.file.as_ref()?)))
            else {
                continue;
            };
            match turns.reload() {
                Ok(()) => tracing::info!(file = %file.display(), "tenants were read again"),
                Err(why) => {
                    tracing::error!(%why, "tenants could not be read again, those before stay");
                }
            }
        }
    }
}

fn rises_after(rules: &TenantRules) -> Duration {
    Duration::from_secs_f64(rules.rise_after)
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reload(self: &Arc<Self>) -> Result<(), ConfigError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let rules = Arc::new(TenantRules::read(file)?);
        self.rules.store(rules.clone());
        let mut state = self.state();
        state.queue.rises_after = rises_after(&rules);
        state.queue.set_shares(|tenant| share(rules.rule(tenant)));
        let named = |name: &TenantName| &**name == OTHERS || rules.tenants.contains_key(&**name);
        state.counts.retain(|name, _| named(name));
        let turns = self.begin(&mut state, None);
        drop(state);
        hand_out(turns);
        Ok(())
    }

    fn count<'a>(&self, state: &'a mut State, tenant: &TenantName) -> &'a mut TenantCounts {
        let name = match self.rules.load().tenants.contains_key(&**tenant) {
            true => tenant.clone(),
            false => OTHERS.into(),
        };
        state.counts.entry(name).or_default()
    }

    async fn enter(self: &Arc<Self>, wish: Box<Wish>, tokens: f64) -> Outcome {
        let (sender, mut receiver) = oneshot::channel();
        let patience = wish.timeout.map_or(self.queue_timeout, |timeout| {
            timeout.min(self.queue_timeout)
        });
        let (id, turns, shed, late) = {
            let mut state = self.state();
            let (now, state) = (Instant::now(), &mut *state);
            self.take_rates(state, &wish, tokens, now)?;
            let tenant = (&wish.tenant, wish.share());
            let id = state
                .queue
                .push(now, tenant, wish.class, tokens.max(1.0), sender);
            let turns = self.begin(state, Some(id));
            let shed = state.queue.shed();
            if let Some(Turn { tenant, .. }) = &shed {
                self.count(state, tenant).refused += 1;
            }
            let is_waiting = turns.iter().all(|(turn, _)| *turn != id);
            let shed = shed.map(|shed| (shed, self.full(state)));
            let mut late = None;
            if is_waiting && shed.as_ref().is_none_or(|(shed, _)| shed.id != id) {
                if state.queue.waiting() == 1 {
                    state.pace.forget();
                }
                late = self.refuse_late(state, &wish, id, patience);
            }
            (id, turns, shed, late)
        };
        hand_out(turns);
        if let Some((turn, why)) = shed {
            let _ = turn.item.send(Err(why));
        }
        if let Some(late) = late {
            return Err(late);
        }
        if let Ok(outcome) = receiver.try_recv() {
            return outcome;
        }
        let _place = Place {
            turns: self,
            tenant: &wish.tenant,
            id,
        };
        match timeout(patience, receiver).await {
            Ok(outcome) => outcome.expect("a place in the queue is kept until it is answered"),
            Err(_) => {
                let mut state = self.state();
                self.count(&mut state, &wish.tenant).refused += 1;
                let (busy, waited) = (self.busy(), patience.as_secs_f64());
                let why = format!("{busy}, and none ended within {waited} s for this one");
                Err(refusal(&mut state, why))
            }
        }
    }

    fn take_rates(
        &self,
        state: &mut State,
        wish: &Wish,
        tokens: f64,
        now: Instant,
    ) -> Result<(), NoPermit> {
        let rule = wish.rule();
        if rule.requests_per_second.is_none() && rule.tokens_per_second.is_none() {
            return Ok(());
        }
        if state.buckets.len() >= MOST_BUCKETS {
            let rules = &wish.rules;
            let is_full =
                |name: &TenantName, buckets: &mut Buckets| buckets.is_full(rules.rule(name), now);
            state
                .buckets
                .retain(|name, buckets| !is_full(name, buckets));
        }
        let buckets = state.buckets.entry(wish.tenant.clone());
        let taken = buckets
            .or_insert_with(|| Buckets::new(now))
            .take(rule, tokens, now);
        if taken.is_err() {
            self.count(state, &wish.tenant).refused += 1;
        }
        taken
    }

    /// Refuses a request that cannot have its turn in time. The first in the queue may try, so that the pace is known
    /// when it changes.
    fn refuse_late(
        &self,
        state: &mut State,
        wish: &Wish,
        id: u64,
        patience: Duration,
    ) -> Option<NoPermit> {
        let ahead = state.queue.ahead(&wish.tenant, id);
        let wait = state.pace.wait(ahead).filter(|wait| *wait > patience);
        let wait = wait.filter(|_| ahead > 0)?.as_secs_f64();
        state.queue.remove(&wish.tenant, id);
        self.count(state, &wish.tenant).refused += 1;
        let limit = patience.as_secs_f64();
        let why = format!(
            "{ahead} requests have their turn before this one, in about {wait:.1} s, and it may wait for {limit} s"
        );
        Some(refusal(state, why))
    }

    fn busy(&self) -> String {
        match self.limit {
            Some(limit) => format!("{limit} requests are in flight"),
            None => "as many requests of the tenant are in flight as it may have".to_owned(),
        }
    }

    fn full(&self, state: &mut State) -> NoPermit {
        let what = match self.queue_size {
            0 => "which is the limit".to_owned(),
            size => format!("which is the limit, and {size} more are waiting"),
        };
        refusal(state, format!("{}, {what}", self.busy()))
    }

    /// Lets all go that may, and returns their ids and permits, which must be handed out without the lock.
    fn begin(self: &Arc<Self>, state: &mut State, came: Option<u64>) -> Vec<(u64, Granted)> {
        let mut turns = Vec::new();
        let now = Instant::now();
        while let Some(turn) = state.queue.next(now) {
            if Some(turn.id) != came {
                state.pace.begun(now);
            }
            self.count(state, &turn.tenant).admitted += 1;
            let permit = Permit {
                turns: self.clone(),
                tenant: turn.tenant,
            };
            turns.push((turn.id, Granted(turn.item, permit)));
        }
        turns
    }
}

fn refusal(state: &mut State, why: String) -> NoPermit {
    NoPermit {
        why,
        retry_after: state.pace.promise(Instant::now(), state.queue.waiting()),
        quotas: Vec::new(),
    }
}

struct Granted(Sender<Outcome>, Permit);

/// A client that has left does not take its permit, which then goes to the next one.
fn hand_out(turns: Vec<(u64, Granted)>) {
    for (_, Granted(sender, permit)) in turns {
        let _ = sender.send(Ok(permit));
    }
}

/// Lets a request go to a worker. Dropping it gives it back.
pub struct Permit {
    turns: Arc<Turns>,
    tenant: TenantName,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.queue.leave(&self.tenant);
        let turns = self.turns.begin(&mut state, None);
        if turns.is_empty() {
            state.pace.pause();
        }
        drop(state);
        hand_out(turns);
    }
}

/// A place in the queue, which is free as soon as its client leaves.
struct Place<'a> {
    turns: &'a Turns,
    tenant: &'a TenantName,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let removed = self.turns.state().queue.remove(self.tenant, self.id);
        drop(removed);
    }
}
