//! What a worker reports of its cache.

/// A change of a worker's cache. Blocks are named by the worker's own hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    Stored(Stored),
    Removed {
        blocks: Vec<u64>,
        tier: Tier,
    },
    /// The cache is empty, in all tiers.
    Cleared,
}

/// Blocks that follow one another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub blocks: Vec<u64>,
    /// The block before the first one; None if they begin a prompt.
    pub parent: Option<u64>,
    /// The tokens of all of them, `block_size` each; none if only the tier of known blocks is new.
    pub tokens: Vec<u32>,
    pub block_size: u32,
    /// What all blocks of the prompt depend on beside their tokens; empty if nothing.
    pub adapter: Vec<u8>,
    /// What each block depends on beside that, as a hash of media or a salt; as many as there are blocks, or none.
    pub extras: Vec<Vec<u8>>,
    pub tier: Tier,
}

/// Where a worker holds a block. A block that has moved to a slower tier still need not be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    #[default]
    Fast,
    Slow,
}

/// How much of a worker's cache is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coverage {
    /// No events come.
    #[default]
    None,
    /// What was stored before the events that were received is not known.
    Part,
    Whole,
}

impl Coverage {
    pub const ALL: [Coverage; 3] = [Coverage::None, Coverage::Part, Coverage::Whole];

    pub fn name(self) -> &'static str {
        ["none", "part", "whole"][self as usize]
    }
}
