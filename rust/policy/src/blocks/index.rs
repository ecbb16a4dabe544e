//! The blocks of all workers by their content. Requests read it while events change it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::blocks::chain;
use crate::blocks::event::{CacheEvent, Coverage, Stored, Tier};
use crate::blocks::owners::Owners;

/// Blocks of one worker, and of all workers together. A block takes at most 120 bytes for each worker that has it, so
/// all take less than 1 GiB.
const MAX_OF_WORKER: usize = 2 << 20;
const MAX_OF_ALL: usize = 8 << 20;

/// Different sizes of blocks, in tokens, that a fleet may have; a request is hashed for each of them.
const SIZES: usize = 4;
const MAX_SIZE: u32 = 4096;

/// Different adapters that are told from models; blocks of further ones are not found.
const ADAPTERS: usize = 4096;

/// A block's holders at one worker: two tiers for each of so many data parallel ranks. Ranks beyond share the last one.
const RANKS: u32 = 32;

/// A change locks one shard; requests that read the others do not wait.
const SHARDS: usize = 64;

type ByHash<V> = HashMap<u64, V, BuildHasherDefault<HashedKey>>;

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub struct HashedKey(u64);

impl Hasher for HashedKey {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64")
    }

    fn write_u64(&mut self, key: u64) {
        // A worker may number its blocks: a map takes the place from the low bits and a check from the high ones.
        self.0 = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The worker's view of a block of its own.
struct Held {
    /// The block's name in the index.
    name: u64,
    /// A bit for each tier of each rank that has it.
    at: u64,
}

/// Which workers have which blocks. Bounded: of a worker with too many blocks, or if all have, further ones are not
/// learned.
pub struct BlockIndex {
    shards: [RwLock<ByHash<Owners>>; SHARDS],
    /// Each worker's blocks by its own hashes, by slot.
    workers: Mutex<Vec<ByHash<Held>>>,
    coverage: RwLock<Vec<Coverage>>,
    /// The sizes of blocks in use, then zeros.
    sizes: [AtomicU32; SIZES],
    /// Hashes of the adapters that blocks depend on.
    adapters: RwLock<HashSet<u64>>,
    held: AtomicUsize,
    /// Workers of whose caches all is known.
    covered: AtomicUsize,
    pub counts: EventCounts,
    max_of_worker: usize,
    max_of_all: usize,
}

/// What happened to events, in numbers.
#[derive(Default)]
pub struct EventCounts {
    pub received: AtomicU64,
    /// Batches that got lost on the way, and times that a worker's blocks were forgotten since its events had ended.
    pub missed: AtomicU64,
    pub forgotten: AtomicU64,
    /// Blocks not learned: for want of room, or since the block before them is not known.
    pub refused: AtomicU64,
    pub orphaned: AtomicU64,
}

impl Default for BlockIndex {
    fn default() -> Self {
        BlockIndex::bounded(MAX_OF_WORKER, MAX_OF_ALL)
    }
}

impl BlockIndex {
    pub(super) fn bounded(max_of_worker: usize, max_of_all: usize) -> Self {
        BlockIndex {
            shards: std::array::from_fn(|_| RwLock::default()),
            workers: Mutex::default(),
            coverage: RwLock::default(),
            sizes: Default::default(),
            adapters: RwLock::default(),
            held: AtomicUsize::new(0),
            covered: AtomicUsize::new(0),
            counts: EventCounts::default(),
            max_of_worker,
            max_of_all,
        }
    }

    /// Applies an event of a worker's data parallel rank.
    pub fn apply(&self, slot: u32, rank: u32, event: &CacheEvent) {
        self.counts.received.fetch_add(1, Relaxed);
        let mut workers = self.workers();
        if workers.len() <= slot as usize {
            workers.resize_with(slot as usize + 1, ByHash::default);
        }
        let own = &mut workers[slot as usize];
        match event {
            CacheEvent::Stored(stored) => self.store(own, slot, rank, stored),
            CacheEvent::Removed { blocks, tier } => {
                for block in blocks {
                    self.take(own, slot, *block, bit(rank, *tier));
                }
            }
            CacheEvent::Cleared => self.clear(own, slot, rank),
        }
    }

    /// Forgets what a worker's rank has, for its cache is no longer known.
    pub fn forget_rank(&self, slot: u32, rank: u32) {
        self.counts.forgotten.fetch_add(1, Relaxed);
        if let Some(own) = self.workers().get_mut(slot as usize) {
            self.clear(own, slot, rank);
        }
    }

    /// Forgets all that a worker has, and that its events come.
    pub fn forget(&self, slot: u32) {
        self.cover(slot, Coverage::None);
        let mut workers = self.workers();
        let Some(own) = workers.get_mut(slot as usize) else {
            return;
        };
        let own = std::mem::take(own);
        drop(workers);
        for held in own.values() {
            self.disown(held.name, slot);
        }
        self.held.fetch_sub(own.len(), Relaxed);
    }

    pub fn cover(&self, slot: u32, coverage: Coverage) {
        let mut all = self
            .coverage
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if all.len() <= slot as usize {
            all.resize(slot as usize + 1, Coverage::None);
        }
        all[slot as usize] = coverage;
        let covered = all.iter().filter(|&&known| known == Coverage::Whole);
        self.covered.store(covered.count(), Relaxed);
    }

    /// How many workers' caches are known. While there are none, nothing needs to be searched.
    pub fn covered(&self) -> usize {
        self.covered.load(Relaxed)
    }

    /// Counts batches that got lost on the way.
    pub fn missed(&self, batches: u64) {
        self.counts.missed.fetch_add(batches, Relaxed);
    }

    /// The adapter that a model's name stands for, alone or after a colon: one that blocks depend on. Empty if it is none.
    pub fn adapter_in<'a>(&self, model: &'a [u8]) -> &'a [u8] {
        let after = model.iter().rposition(|&byte| byte == b':');
        let after = after.map_or(&b""[..], |colon| &model[colon + 1..]);
        let known = [model, after]
            .into_iter()
            .find(|name| self.has_adapter(name));
        known.unwrap_or_default()
    }

    fn has_adapter(&self, name: &[u8]) -> bool {
        let adapters = self.adapters.read();
        let adapters = adapters.unwrap_or_else(PoisonError::into_inner);
        !adapters.is_empty() && adapters.contains(&chain::of_bytes(name))
    }

    /// Gives memory back that blocks took that are gone.
    pub fn tidy(&self) {
        fn shrink<V>(map: &mut ByHash<V>) {
            if map.len() < map.capacity() / 4 {
                map.shrink_to(map.len() * 2);
            }
        }
        self.workers().iter_mut().for_each(shrink);
        for shard in &self.shards {
            shrink(&mut shard.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Blocks that each worker has, by slot.
    pub fn blocks(&self) -> Vec<u64> {
        let workers = self.workers();
        workers.iter().map(|own| own.len() as u64).collect()
    }

    /// How much is known of each worker's cache, by slot.
    pub(super) fn coverage(&self) -> RwLockReadGuard<'_, Vec<Coverage>> {
        self.coverage.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sizes of blocks that workers have.
    pub(super) fn sizes(&self) -> impl Iterator<Item = u32> {
        let sizes = self.sizes.iter().map(|size| size.load(Relaxed));
        sizes.take_while(|&size| size > 0)
    }

    /// Calls `read` with the slots of the workers that have a block and whose events come or came.
    pub(super) fn owners<T>(&self, name: u64, read: impl FnOnce(&[u32]) -> T) -> T {
        let shard = self.shard(name).read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        read(shard.get(&name).map_or(&[][..], Owners::slots))
    }

    /// Different blocks that any worker has.
    #[cfg(test)]
    pub(super) fn content(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| shard.read().unwrap().len()).sum()
    }

    fn workers(&self) -> MutexGuard<'_, Vec<ByHash<Held>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, name: u64) -> &RwLock<ByHash<Owners>> {
        &self.shards[(name >> 32) as usize % SHARDS]
    }

    fn store(&self, own: &mut ByHash<Held>, slot: u32, rank: u32, stored: &Stored) {
        let Stored {
            blocks,
            tokens,
            block_size,
            ..
        } = stored;
        let size = *block_size as usize;
        let count = blocks.len();
        if tokens.is_empty() {
            // Known blocks of one tier that another one has now too.
            for block in blocks {
                match own.get_mut(block) {
                    Some(held) => held.at |= bit(rank, stored.tier),
                    None => drop(self.counts.orphaned.fetch_add(1, Relaxed)),
                }
            }
            return;
        }
        let parent = match stored.parent {
            None => Some(chain::root(*block_size, &stored.adapter)),
            Some(parent) => own.get(&parent).map(|held| held.name),
        };
        let has_tokens = size > 0 && count.checked_mul(size) == Some(tokens.len());
        let Some(mut name) = parent.filter(|_| has_tokens) else {
            self.counts.orphaned.fetch_add(count as u64, Relaxed);
            return;
        };
        if !self.has_size(*block_size) {
            self.counts.refused.fetch_add(count as u64, Relaxed);
            return;
        }
        self.cover_at_least(slot);
        self.learn_adapter(&stored.adapter);
        for (place, (&block, tokens)) in blocks.iter().zip(tokens.chunks_exact(size)).enumerate() {
            let extra = stored.extras.get(place).map_or(&b""[..], Vec::as_slice);
            name = chain::next(name, tokens, extra);
            let is_full =
                own.len() >= self.max_of_worker || self.held.load(Relaxed) >= self.max_of_all;
            if is_full && !own.contains_key(&block) {
                self.counts
                    .refused
                    .fetch_add((count - place) as u64, Relaxed);
                return;
            }
            let at = bit(rank, stored.tier);
            let before = own.insert(block, Held { name, at });
            match before {
                // A worker that uses a hash for other content than before has lost what it was.
                Some(held) if held.name != name => self.disown(held.name, slot),
                Some(held) => {
                    own.insert(
                        block,
                        Held {
                            name,
                            at: at | held.at,
                        },
                    );
                    continue;
                }
                None => drop(self.held.fetch_add(1, Relaxed)),
            }
            self.own(name, slot);
        }
    }

    /// Ends the holds of `at` on one of a worker's blocks.
    fn take(&self, own: &mut ByHash<Held>, slot: u32, block: u64, at: u64) {
        let Some(held) = own.get_mut(&block) else {
            return;
        };
        held.at &= !at;
        if held.at == 0 {
            self.disown(held.name, slot);
            own.remove(&block);
            self.held.fetch_sub(1, Relaxed);
        }
    }

    fn clear(&self, own: &mut ByHash<Held>, slot: u32, rank: u32) {
        let at = bit(rank, Tier::Fast) | bit(rank, Tier::Slow);
        let before = own.len();
        own.retain(|_, held| {
            held.at &= !at;
            if held.at == 0 {
                self.disown(held.name, slot);
            }
            held.at != 0
        });
        self.held.fetch_sub(before - own.len(), Relaxed);
    }

    fn own(&self, name: u64, slot: u32) {
        let shard = self.shard(name).write();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard
            .entry(name)
            .and_modify(|owners| owners.add(slot))
            .or_insert(Owners::One(slot));
    }

    fn disown(&self, name: u64, slot: u32) {
        let shard = self.shard(name).write();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        if let Some(owners) = shard.get_mut(&name)
            && owners.remove(slot)
        {
            shard.remove(&name);
        }
    }

    /// True if blocks of this size are looked for, now or from now on.
    fn has_size(&self, size: u32) -> bool {
        if size > MAX_SIZE {
            return false;
        }
        self.sizes.iter().any(|known| {
            let free = known.compare_exchange(0, size, Relaxed, Relaxed);
            free.is_ok() || free == Err(size)
        })
    }

    fn learn_adapter(&self, adapter: &[u8]) {
        if !adapter.is_empty() && !self.has_adapter(adapter) {
            let adapters = self.adapters.write();
            let mut adapters = adapters.unwrap_or_else(PoisonError::into_inner);
            if adapters.len() < ADAPTERS {
                adapters.insert(chain::of_bytes(adapter));
            }
        }
    }

    /// Makes room for the worker in the tables that requests read.
    fn cover_at_least(&self, slot: u32) {
        let is_there = self.coverage().len() > slot as usize;
        if !is_there {
            self.cover(slot, Coverage::None);
        }
    }
}

fn bit(rank: u32, tier: Tier) -> u64 {
    let place = 2 * rank.min(RANKS - 1);
    match tier {
        Tier::Fast => 1 << place,
        Tier::Slow => 2 << place,
    }
}
