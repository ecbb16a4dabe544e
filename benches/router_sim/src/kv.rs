//! A worker's KV cache: blocks of a prompt's prefix, the least recently used forgotten first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use sglang_omni_policy::blocks::event::{CacheEvent, Stored, Tier};

use crate::trace::TOKEN_BYTES;

/// Bytes of prompt text in a block: 16 tokens of the traces' text.
pub const BLOCK_BYTES: usize = 64;
pub const BLOCK_TOKENS: usize = BLOCK_BYTES / TOKEN_BYTES;

const NONE: u32 = u32::MAX;

/// A block is identified by the hash of the text up to its end, so that the text before it counts. A prompt that
/// uses a block uses those before it; they are touched last, so the oldest block ends a prefix.
pub struct KvCache {
    capacity: usize,
    slots: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    blocks: Vec<Block>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    chain: Vec<u64>,
    /// Blocks that the last prompt added and displaced, the former in the order of the prompt's end to its beginning.
    added: Vec<usize>,
    displaced: Vec<u64>,
}

struct Block {
    hash: u64,
    newer: u32,
    older: u32,
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64")
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl KvCache {
    /// A cache for at most `bytes` of prompt text.
    pub fn new(bytes: usize) -> KvCache {
        KvCache {
            capacity: bytes / BLOCK_BYTES,
            slots: HashMap::default(),
            blocks: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            chain: Vec::new(),
            added: Vec::new(),
            displaced: Vec::new(),
        }
    }

    /// Bytes of the prompt's start that are cached, whole blocks only.
    pub fn cached(&mut self, prompt: &[u8]) -> usize {
        self.hash(prompt);
        let known = |hash: &&u64| self.slots.contains_key(hash);
        self.chain.iter().take_while(known).count() * BLOCK_BYTES
    }

    /// Remembers a prompt, as far as there is room for it.
    pub fn insert(&mut self, prompt: &[u8]) {
        self.hash(prompt);
        let chain = std::mem::take(&mut self.chain);
        self.added.clear();
        self.displaced.clear();
        let fits = chain[..chain.len().min(self.capacity)].iter();
        for (place, &hash) in fits.enumerate().rev() {
            match self.slots.get(&hash) {
                Some(&slot) => self.unlink(slot),
                None => {
                    self.add(hash);
                    self.added.push(place);
                }
            }
            let slot = self.slots[&hash];
            self.link_newest(slot);
        }
        self.chain = chain;
    }

    /// What a worker publishes of its last `insert` of this prompt, of which these are the tokens.
    pub fn events(&self, tokens: &[u32]) -> Vec<CacheEvent> {
        let mut events = Vec::new();
        if !self.displaced.is_empty() {
            events.push(CacheEvent::Removed {
                blocks: self.displaced.clone(),
                tier: Tier::Fast,
            });
        }
        let places: Vec<usize> = self.added.iter().rev().copied().collect();
        for run in places.chunk_by(|before, after| before + 1 == *after) {
            let (first, end) = (run[0], run[run.len() - 1] + 1);
            events.push(CacheEvent::Stored(Stored {
                blocks: self.chain[first..end].to_vec(),
                parent: first.checked_sub(1).map(|before| self.chain[before]),
                tokens: tokens[first * BLOCK_TOKENS..end * BLOCK_TOKENS].to_vec(),
                block_size: BLOCK_TOKENS as u32,
                ..Stored::default()
            }));
        }
        events
    }

    pub fn clear(&mut self) {
        *self = KvCache::new(self.capacity * BLOCK_BYTES);
    }

    fn hash(&mut self, prompt: &[u8]) {
        self.chain.clear();
        let mut hash = 0u64;
        for block in prompt.chunks_exact(BLOCK_BYTES) {
            for word in block.chunks_exact(8) {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                hash ^= hash >> 29;
            }
            self.chain.push(hash);
        }
    }

    fn add(&mut self, hash: u64) {
        if self.slots.len() == self.capacity {
            let oldest = self.oldest;
            self.unlink(oldest);
            let hash = self.blocks[oldest as usize].hash;
            self.slots.remove(&hash);
            self.displaced.push(hash);
            self.free.push(oldest);
        }
        let block = Block {
            hash,
            newer: NONE,
            older: NONE,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.blocks[slot as usize] = block;
                slot
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        };
        self.slots.insert(hash, slot);
    }

    fn unlink(&mut self, slot: u32) {
        let Block { newer, older, .. } = self.blocks[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let below = self.newest;
        self.blocks[slot as usize].newer = NONE;
        self.blocks[slot as usize].older = below;
        match below {
            NONE => self.oldest = slot,
            below => self.blocks[below as usize].newer = slot,
        }
        self.newest = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(blocks: &[u8]) -> Vec<u8> {
        blocks
            .iter()
            .flat_map(|&letter| [letter; BLOCK_BYTES])
            .collect()
    }

    #[test]
    fn a_prefix_is_cached_up_to_the_first_other_block() {
        let mut cache = KvCache::new(8 * BLOCK_BYTES);
        cache.insert(&prompt(b"abc"));
        assert_eq!(cache.cached(&prompt(b"abx")), 2 * BLOCK_BYTES);
        assert_eq!(cache.cached(&prompt(b"xbc")), 0);
        assert_eq!(cache.cached(&prompt(b"abcd")), 3 * BLOCK_BYTES);
        cache.clear();
        assert_eq!(cache.cached(&prompt(b"abc")), 0);
    }

    #[test]
    fn the_least_recently_used_end_of_a_prefix_goes_first() {
        let mut cache = KvCache::new(4 * BLOCK_BYTES);
        cache.insert(&prompt(b"ab"));
        cache.insert(&prompt(b"xy"));
        cache.insert(&prompt(b"ab"));
        cache.insert(&prompt(b"z"));
        assert_eq!(cache.cached(&prompt(b"xy")), BLOCK_BYTES);
        assert_eq!(cache.cached(&prompt(b"ab")), 2 * BLOCK_BYTES);
        cache.insert(&prompt(b"123456789"));
        assert_eq!(cache.cached(&prompt(b"123456789")), 4 * BLOCK_BYTES);
    }
}
