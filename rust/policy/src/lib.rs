//! Which worker gets a request: candidates and a request's key in, a claim on one of them out, which is kept
//! if the worker answers with success and dropped if not. Nothing here knows of sockets, threads or clocks,
//! so the simulator in `benches/router_sim` runs the router's own policies.
//!
//! - [`key`] reads the key out of a request's JSON body.
//! - [`Policy`] chooses. Each policy is one file; [`PolicyKind`] lists them by name, [`build`] makes them.
//! - [`CacheAware`] is the one that remembers: a prefix tree in `tree/`, weighed against load.
//! - [`blocks`] has what workers publish of their caches, which it uses instead where it is there.

pub mod blocks;
mod cache_aware;
mod candidates;
mod claim;
mod consistent_hash;
mod costs;
pub mod key;
mod kind;
mod least_load;
mod metric;
mod power_of_two;
mod random;
mod round_robin;
mod tree;

pub use cache_aware::{CacheAware, Tuning};
pub use candidates::{Candidate, Candidates, url_hash};
pub use claim::Claim;
pub use kind::{PolicyKind, PolicySettings, UnknownPolicy, build};
pub use metric::{Metric, MetricValue};

use self::blocks::index::BlockIndex;
use self::tree::{ClaimId, Stamp};

/// What a policy may know of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestKey<'a> {
    /// The text that the model would read, first to last; empty if the body is not JSON.
    pub text: &'a [u8],
    /// The tokens of the text, if they are known and all that it depends on; otherwise empty.
    pub tokens: &'a [u32],
    pub model: &'a [u8],
    /// The client's own name for itself or its conversation: the `x-session-id` header, or else the body's
    /// `prompt_cache_key` or `user`. Empty if there is none.
    pub session: &'a [u8],
    /// Whether the usage in the answer does not tell how much of the text was cached: the text has hashes
    /// instead of media, or is cut off, or the request bypasses the worker's cache.
    pub is_incomparable: bool,
    /// Whether another worker has refused the request or failed at it.
    pub is_retry: bool,
}

/// The candidate that a policy chose, by its index, and what the policy expects of it.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    pub index: usize,
    pub receipt: Receipt,
}

impl From<usize> for Decision {
    fn from(index: usize) -> Self {
        Decision {
            index,
            receipt: Receipt::default(),
        }
    }
}

/// What a policy expected of the worker that it chose. Each is settled once, by `kept` or `withdrawn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The text on its way to the worker of this slot.
    claim: Option<ClaimId>,
    slot: u32,
    /// Bytes of the text, and how many of them the worker knew.
    text: u32,
    known: u32,
    /// When the worker had last seen those, if it must have cached them then.
    seen: Option<Stamp>,
}

/// What a worker reported of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

/// Chooses workers for requests, from several threads at once. Callers use [`choose`](#method.choose), which
/// settles every receipt.
pub trait Policy: Send + Sync {
    /// Chooses one of the candidates.
    fn pick(&self, candidates: Candidates<'_>, request: &RequestKey<'_>) -> Decision;

    /// The worker has begun to answer with success: it has seen the prompt.
    fn kept(&self, _receipt: Receipt) {}

    /// Nothing came of the request: the worker refused it or failed, or the client left first.
    fn withdrawn(&self, _receipt: Receipt) {}

    /// The worker has answered the request, after `kept`, and reported how much of the prompt was cached.
    fn answered(&self, _receipt: Receipt, _usage: Usage) {}

    /// Whether `pick` looks at the request; if not, bodies are not searched for their key.
    fn reads_request(&self) -> bool {
        false
    }

    /// Whether the requests of a session meet at one worker by what `pick` does; if not, callers remember where it is.
    fn places_sessions(&self) -> bool {
        false
    }

    /// Whether `answered` is to be called; if not, answers are not searched for usage.
    fn reads_usage(&self) -> bool {
        false
    }

    /// Called at every eviction interval, and when a worker was removed, with the slots of all workers left.
    fn maintain(&self, _slots: &[u32]) {}

    /// The cache of the worker of this slot was emptied, or the worker is new.
    fn forget(&self, _slot: u32) {}

    /// Where workers' events are to be applied; None if the policy does not use them.
    fn blocks(&self) -> Option<&BlockIndex> {
        None
    }

    /// The policy's own metrics.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    pub fn fleet(count: u32) -> Vec<Candidate> {
        let candidate = |slot| Candidate {
            slot,
            load: 0,
            url_hash: url_hash(&format!("http://w:{}", slot + 1)),
        };
        (0..count).map(candidate).collect()
    }

    /// The workers that a policy chose for each request, by their index. All of them answer at once.
    pub fn picks<'t>(
        policy: &dyn Policy,
        fleet: &[Candidate],
        texts: impl IntoIterator<Item = &'t str>,
    ) -> Vec<usize> {
        let pick = |text: &str| {
            let request = RequestKey {
                text: text.as_bytes(),
                ..RequestKey::default()
            };
            let (index, claim) = policy.choose(fleet, &request);
            claim.keep();
            index
        };
        texts.into_iter().map(pick).collect()
    }
}
