//! The list of policies by name, and their settings.

use std::fmt;
use std::str::FromStr;

use crate::consistent_hash::ConsistentHash;
use crate::least_load::LeastLoad;
use crate::power_of_two::PowerOfTwo;
use crate::random::Random;
use crate::round_robin::RoundRobin;
use crate::{CacheAware, Policy};

/// The settings of policies. All but `kind` are for `cache_aware`.
#[derive(Clone, Copy, Debug)]
pub struct PolicySettings {
    pub kind: PolicyKind,
    /// A prompt of which no worker knows more than this share, 0 to 1, is cold.
    pub cache_threshold: f64,
    /// Queues are imbalanced if the longest exceeds the shortest by more than this many requests and is more
    /// than `balance_rel_threshold` times as long.
    pub balance_abs_threshold: usize,
    pub balance_rel_threshold: f64,
    /// Bytes of memory that the prefix tree takes for each worker.
    pub max_tree_size: usize,
}

impl Default for PolicySettings {
    fn default() -> Self {
        PolicySettings {
            kind: PolicyKind::CacheAware,
            cache_threshold: 0.5,
            balance_abs_threshold: 32,
            balance_rel_threshold: 1.0001,
            max_tree_size: 16 << 20,
        }
    }
}

macro_rules! policies {
    ($($kind:ident $name:literal $build:expr),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PolicyKind { $($kind),+ }

        impl PolicyKind {
            pub const NAMES: &[&str] = &[$($name),+];
            const ALL: &[PolicyKind] = &[$(PolicyKind::$kind),+];

            pub fn name(self) -> &'static str {
                PolicyKind::NAMES[self as usize]
            }
        }

        /// The policy of that kind.
        pub fn build(settings: &PolicySettings) -> Box<dyn Policy> {
            let build: fn(&PolicySettings) -> Box<dyn Policy> = match settings.kind {
                $(PolicyKind::$kind => $build),+
            };
            build(settings)
        }
    };
}

policies! {
    Random "random" |_| Box::new(Random),
    RoundRobin "round_robin" |_| Box::new(RoundRobin::default()),
    CacheAware "cache_aware" |settings| Box::new(CacheAware::new(settings)),
    LeastLoad "least_load" |_| Box::new(LeastLoad),
    PowerOfTwo "power_of_two" |_| Box::new(PowerOfTwo),
    ConsistentHash "consistent_hash" |_| Box::new(ConsistentHash),
}

/// The error for a text that names no policy.
#[derive(Debug)]
pub struct UnknownPolicy(String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is none of {}",
            self.0,
            PolicyKind::NAMES.join(", ")
        )
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let mut all = PolicyKind::ALL.iter().copied();
        all.find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
}
