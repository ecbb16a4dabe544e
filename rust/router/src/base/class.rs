//! The priority classes of requests.

use serde::Deserialize;

/// While a request of the first class waits, none of the next has its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriorityClass {
    High,
    #[default]
    Normal,
    Low,
}

impl PriorityClass {
    pub const COUNT: usize = 3;

    pub fn parse(word: &str) -> Option<PriorityClass> {
        Some(match word {
            "high" => PriorityClass::High,
            "normal" => PriorityClass::Normal,
            "low" => PriorityClass::Low,
            _ => return None,
        })
    }
}
