//! How a worker is chosen. Each policy is one file and one implementation of [`Policy`].

mod cache_aware;
mod consistent_hash;
mod least_load;
mod power_of_two;
mod random;
mod round_robin;
mod tree;

pub use cache_aware::{CacheAware, Tuning};

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

use self::tree::{ClaimId, Stamp};
use crate::app::config::Config;
use crate::base::config_error::ConfigError;
use crate::fleet::worker::Worker;

/// What a policy may know of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestKey<'a> {
    /// What the model would read, first to last; empty where the body is not JSON.
    pub text: &'a [u8],
    pub model: &'a [u8],
    /// Who asks: the `x-session-id` header, or else the body's
    /// `prompt_cache_key` or `user`. Empty if neither is there.
    pub session: &'a [u8],
    /// Whether the answer's usage says nothing of how much of the text was cached: media stand in it by their
    /// hash, or it is cut off, or the request passes caches by.
    pub is_incomparable: bool,
}

/// The workers that may take a request, at least one, in the order of their ids.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    fleet: &'a [Arc<Worker>],
    eligible: &'a [usize],
}

impl<'a> Candidates<'a> {
    /// `eligible` holds ascending positions in `fleet` and is not empty.
    pub fn new(fleet: &'a [Arc<Worker>], eligible: &'a [usize]) -> Self {
        assert!(
            !eligible.is_empty(),
            "a policy chooses among at least one worker"
        );
        Candidates { fleet, eligible }
    }

    pub fn len(self) -> usize {
        self.eligible.len()
    }

    pub fn is_empty(self) -> bool {
        self.eligible.is_empty()
    }

    pub fn get(self, index: usize) -> &'a Arc<Worker> {
        &self.fleet[self.eligible[index]]
    }

    pub fn iter(self) -> impl Iterator<Item = &'a Arc<Worker>> {
        self.eligible
            .iter()
            .map(move |&position| &self.fleet[position])
    }

    pub fn with_id(self, id: u32) -> Option<&'a Arc<Worker>> {
        let index = self
            .eligible
            .binary_search_by_key(&id, |&position| self.fleet[position].id)
            .ok()?;
        Some(self.get(index))
    }

    /// More than any slot of them: the length of a table that has one entry for each.
    pub fn slots(self) -> usize {
        self.iter().map(|worker| worker.slot()).max().unwrap_or(0) as usize + 1
    }

    /// The worker of the least cost, one a candidate; among equals, one at random.
    pub fn least(self, costs: &[f32]) -> &'a Arc<Worker> {
        let least = costs.iter().copied().fold(f32::INFINITY, f32::min);
        let equals = costs.iter().filter(|&&cost| cost == least).count();
        let chosen = fastrand::usize(..equals.max(1));
        let place = (0..self.len())
            .filter(|&place| costs[place] == least)
            .nth(chosen);
        self.get(place.unwrap_or(0))
    }

    /// The worker with the smallest rank; among equals, one at random.
    pub fn best_by_key<K: Ord>(self, rank: impl Fn(&Worker) -> K) -> &'a Arc<Worker> {
        let mut best = (rank(self.get(0)), self.get(0));
        let mut equals = 1;
        for worker in self.iter().skip(1) {
            let here = rank(worker);
            match here.cmp(&best.0) {
                std::cmp::Ordering::Less => (best, equals) = ((here, worker), 1),
                std::cmp::Ordering::Equal => {
                    equals += 1;
                    if fastrand::usize(..equals) == 0 {
                        best.1 = worker;
                    }
                }
                std::cmp::Ordering::Greater => {}
            }
        }
        best.1
    }
}

/// A worker for a request, and what the policy wants to be reminded of once it has answered.
pub struct Decision<'a> {
    pub worker: &'a Arc<Worker>,
    pub receipt: Receipt,
}

impl<'a> From<&'a Arc<Worker>> for Decision<'a> {
    fn from(worker: &'a Arc<Worker>) -> Self {
        Decision {
            worker,
            receipt: Receipt::default(),
        }
    }
}

/// What a policy expected of the worker that it chose. It is to be settled once: by `kept` or `withdrawn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The text on its way to the worker.
    claim: Option<ClaimId>,
    /// Bytes of the text, and how many of them the worker knew.
    text: u32,
    known: u32,
    /// When the worker had last seen those, if it must have cached them then.
    seen: Option<Stamp>,
}

/// What a worker said of a prompt when it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

pub trait Policy: Send + Sync {
    /// Chooses one of the candidates. Called on every thread at once.
    fn pick<'a>(&self, candidates: Candidates<'a>, request: &RequestKey<'_>) -> Decision<'a>;

    /// Called when a worker has begun to answer a request well: it has seen the prompt.
    fn kept(&self, _receipt: Receipt) {}

    /// Called when nothing came of a request: the worker refused it or failed, or the client left first.
    fn withdrawn(&self, _receipt: Receipt) {}

    /// Called when a worker has answered a request and said how much of the prompt it had cached, after
    /// `kept`.
    fn answered(&self, _worker: &Worker, _receipt: Receipt, _usage: Usage) {}

    /// Whether `pick` looks at the request; if not, bodies are not searched for its key.
    fn reads_request(&self) -> bool {
        false
    }

    /// Whether `answered` is to be called; if not, answers are not searched for usage.
    fn reads_usage(&self) -> bool {
        false
    }

    /// Called at every eviction interval, and when a worker was removed.
    fn maintain(&self, _fleet: &[Arc<Worker>]) {}

    /// A worker's cache was emptied, or the worker is new.
    fn forget(&self, _worker: &Worker) {}

    /// Appends the policy's own metrics in Prometheus' text format.
    fn write_metrics(&self, _fleet: &[Arc<Worker>], _sees_urls: bool, _out: &mut String) {}
}

macro_rules! policies {
    ($($kind:ident $name:literal),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
        pub enum PolicyKind { $($kind),+ }

        impl PolicyKind {
            pub const NAMES: &[&str] = &[$($name),+];

            pub fn name(self) -> &'static str {
                match self { $(PolicyKind::$kind => $name),+ }
            }
        }

        impl FromStr for PolicyKind {
            type Err = ConfigError;

            fn from_str(text: &str) -> Result<Self, ConfigError> {
                match text {
                    $($name => Ok(PolicyKind::$kind),)+
                    _ => Err(ConfigError(format!("{text:?} is none of {}", PolicyKind::NAMES.join(", ")))),
                }
            }
        }
    };
}

impl TryFrom<String> for PolicyKind {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

policies! {
    Random "random",
    RoundRobin "round_robin",
    CacheAware "cache_aware",
    LeastLoad "least_load",
    PowerOfTwo "power_of_two",
    ConsistentHash "consistent_hash",
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub fn build(config: &Config) -> Box<dyn Policy> {
    match config.policy {
        PolicyKind::Random => Box::new(random::Random),
        PolicyKind::RoundRobin => Box::new(round_robin::RoundRobin::default()),
        PolicyKind::CacheAware => Box::new(CacheAware::new(config)),
        PolicyKind::LeastLoad => Box::new(least_load::LeastLoad),
        PolicyKind::PowerOfTwo => Box::new(power_of_two::PowerOfTwo),
        PolicyKind::ConsistentHash => Box::new(consistent_hash::ConsistentHash),
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::fleet::worker::Authorization;

    pub fn fleet(count: usize) -> Vec<Arc<Worker>> {
        (0..count)
            .map(|port| format!("http://w:{}", port + 1).parse().unwrap())
            .map(|url| Arc::new(Worker::new(url, Authorization::OfFleet)))
            .collect()
    }

    /// Positions in the fleet that a policy chose for each request, answered at once.
    pub fn picks<'t>(
        policy: &dyn Policy,
        fleet: &[Arc<Worker>],
        texts: impl IntoIterator<Item = &'t str>,
    ) -> Vec<usize> {
        let eligible: Vec<usize> = (0..fleet.len()).collect();
        let pick = |text: &str| {
            let request = RequestKey {
                text: text.as_bytes(),
                ..RequestKey::default()
            };
            let chosen = policy.pick(Candidates::new(fleet, &eligible), &request);
            policy.kept(chosen.receipt);
            fleet
                .iter()
                .position(|worker| worker.id == chosen.worker.id)
                .unwrap()
        };
        texts.into_iter().map(pick).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for name in PolicyKind::NAMES {
            assert_eq!(name.parse::<PolicyKind>().unwrap().name(), *name);
        }
        let text = "cache-aware".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(
            text.contains("cache_aware") && text.contains("round_robin"),
            "{text}"
        );
    }

    #[test]
    fn ties_are_spread() {
        let fleet = testing::fleet(4);
        let picks = testing::picks(&least_load::LeastLoad, &fleet, std::iter::repeat_n("", 400));
        for worker in 0..4 {
            assert!(picks.iter().filter(|&&pick| pick == worker).count() > 40);
        }
    }
}
