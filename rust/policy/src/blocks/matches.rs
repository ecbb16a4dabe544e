//! How much of a request each worker has cached, by its events.

use crate::blocks::chain;
use crate::blocks::event::Coverage;
use crate::blocks::index::BlockIndex;

/// The result of a search of a [`BlockIndex`], and the memory that finding takes. By worker's slot; a worker beyond the ends
/// is not covered and has nothing.
#[derive(Default)]
pub struct Matches {
    /// Tokens of the request's start that each worker has.
    tokens: Vec<u32>,
    coverage: Vec<Coverage>,
    chain: Vec<u64>,
    ranges: Vec<Range>,
}

/// Blocks of the chain from `low` to before `high`, and how many workers have the first one and the one at the end.
#[derive(Clone, Copy)]
struct Range {
    low: usize,
    high: usize,
    at_low: usize,
    at_high: usize,
}

impl Matches {
    /// How much is known of a worker's cache, and how many of the request's first tokens are known to be in it.
    pub fn of(&self, slot: u32) -> (Coverage, u32) {
        let coverage = self.coverage.get(slot as usize).copied();
        let tokens = self.tokens.get(slot as usize).copied();
        (coverage.unwrap_or_default(), tokens.unwrap_or(0))
    }

    /// Finds how much of a prompt each worker has. `adapter`: the one that the prompt is for, if any.
    pub fn find(&mut self, index: &BlockIndex, tokens: &[u32], adapter: &[u8]) {
        self.coverage.clone_from(&index.coverage());
        self.tokens.clear();
        self.tokens.resize(self.coverage.len(), 0);
        for size in index.sizes() {
            self.chain.clear();
            chain::of_prompt(tokens, size, adapter, &mut self.chain);
            self.follow(index, size);
        }
    }

    /// Finds how far each worker has the chain's blocks, which are of this size.
    ///
    /// A worker that has a block has those before it: caches use the beginning of a prompt whenever they use the rest,
    /// so it is evicted last. So where as many workers have two blocks they are the same workers, and nothing between
    /// the two needs to be looked at.
    fn follow(&mut self, index: &BlockIndex, size: u32) {
        let Some(&first) = self.chain.first() else {
            return;
        };
        self.ranges.clear();
        self.ranges.push(Range {
            low: 0,
            high: self.chain.len(),
            at_low: index.owners(first, <[u32]>::len),
            at_high: 0,
        });
        while let Some(range) = self.ranges.pop() {
            if range.at_low == range.at_high {
                continue;
            }
            let middle = range.low.midpoint(range.high);
            if middle == range.low {
                let tokens = (range.low as u32 + 1) * size;
                let found = &mut self.tokens;
                index.owners(self.chain[range.low], |slots| {
                    for &slot in slots {
                        // A worker that came after the search began has no place.
                        if let Some(known) = found.get_mut(slot as usize) {
                            *known = (*known).max(tokens);
                        }
                    }
                });
                continue;
            }
            let at_middle = index.owners(self.chain[middle], <[u32]>::len);
            self.ranges.push(Range {
                high: middle,
                at_high: at_middle,
                ..range
            });
            self.ranges.push(Range {
                low: middle,
                at_low: at_middle,
                ..range
            });
        }
    }
}
