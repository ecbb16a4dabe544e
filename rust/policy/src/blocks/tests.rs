//! The index beside a plain model of caches, and its bounds.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;

use super::event::{CacheEvent, Coverage, Stored, Tier};
use super::index::BlockIndex;
use super::matches::Matches;

const SIZE: u32 = 4;

fn stored(blocks: &[u64], parent: Option<u64>, tokens: &[u32]) -> CacheEvent {
    CacheEvent::Stored(Stored {
        blocks: blocks.to_vec(),
        parent,
        tokens: tokens.to_vec(),
        block_size: SIZE,
        ..Stored::default()
    })
}

fn removed(blocks: &[u64]) -> CacheEvent {
    CacheEvent::Removed {
        blocks: blocks.to_vec(),
        tier: Tier::Fast,
    }
}

fn found(index: &BlockIndex, tokens: &[u32]) -> Matches {
    let mut matches = Matches::default();
    matches.find(index, tokens, b"");
    matches
}

fn prompt(blocks: &[u32]) -> Vec<u32> {
    let block = |&letter: &u32| (0..SIZE).map(move |at| 100 * letter + at);
    blocks.iter().flat_map(block).collect()
}

/// A worker as it is: its blocks by the prompt up to their end, with its own hashes of them.
#[derive(Default)]
struct Model {
    blocks: HashMap<Vec<u32>, u64>,
}

impl Model {
    fn has(&self, prompt: &[u32]) -> u32 {
        let ends = (1..=prompt.len()).take_while(|&end| self.blocks.contains_key(&prompt[..end]));
        ends.count() as u32 * SIZE
    }

    /// A block that no other one follows.
    fn leaf(&self, random: &mut fastrand::Rng) -> Option<Vec<u32>> {
        let is_leaf = |path: &&Vec<u32>| {
            let longer = |other: &Vec<u32>| other.len() > path.len() && other.starts_with(path);
            !self.blocks.keys().any(longer)
        };
        let mut leaves: Vec<_> = self.blocks.keys().filter(is_leaf).cloned().collect();
        leaves.sort_unstable();
        random.choice(leaves)
    }
}

#[test]
fn the_index_finds_what_a_model_of_the_caches_has() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let index = BlockIndex::default();
        let mut models: Vec<Model> = (0..5).map(|_| Model::default()).collect();
        let mut next = 1;
        for _ in 0..400 {
            let slot = random.u32(..5);
            let model = &mut models[slot as usize];
            match random.u32(..10) {
                0..6 => {
                    let path: Vec<u32> = (0..random.usize(1..7)).map(|_| random.u32(..3)).collect();
                    let known = (model.has(&path) / SIZE) as usize;
                    // Engines publish what is new, in pieces of any length.
                    let mut at = known;
                    while at < path.len() {
                        let end = random.usize(at + 1..=path.len());
                        let parent = (at > 0).then(|| model.blocks[&path[..at]]);
                        let names: Vec<u64> = (at..end).map(|place| next + place as u64).collect();
                        next += path.len() as u64;
                        for (place, name) in (at..end).zip(&names) {
                            model.blocks.insert(path[..=place].to_vec(), *name);
                        }
                        index.apply(slot, 0, &stored(&names, parent, &prompt(&path[at..end])));
                        at = end;
                    }
                }
                6..9 => {
                    if let Some(leaf) = model.leaf(&mut random) {
                        let name = model.blocks.remove(&leaf).unwrap();
                        index.apply(slot, 0, &removed(&[name]));
                    }
                }
                _ if random.u32(..8) == 0 => {
                    model.blocks.clear();
                    index.apply(slot, 0, &CacheEvent::Cleared);
                }
                _ => {}
            }
            let asked: Vec<u32> = (0..random.usize(1..8)).map(|_| random.u32(..3)).collect();
            let matches = found(&index, &prompt(&asked));
            for (slot, model) in (0..).zip(&models) {
                assert_eq!(
                    matches.of(slot).1,
                    model.has(&asked),
                    "seed {seed}, {asked:?}"
                );
            }
        }
        let held: Vec<u64> = models
            .iter()
            .map(|model| model.blocks.len() as u64)
            .collect();
        assert_eq!(index.blocks(), held[..index.blocks().len()]);
        (0..5).for_each(|slot| index.forget(slot));
        assert_eq!(index.blocks().iter().sum::<u64>(), 0);
        assert_eq!(index.content(), 0);
    }
}

#[test]
fn a_block_is_there_until_every_rank_and_tier_has_lost_it() {
    let index = BlockIndex::default();
    let tokens = prompt(&[1, 2]);
    for rank in [0, 1] {
        index.apply(7, rank, &stored(&[10, 11], None, &tokens));
    }
    index.apply(7, 0, &removed(&[10, 11]));
    assert_eq!(found(&index, &tokens).of(7).1, 8);
    let slow = Stored {
        blocks: vec![10],
        block_size: SIZE,
        tier: Tier::Slow,
        ..Stored::default()
    };
    index.apply(7, 1, &CacheEvent::Stored(slow));
    index.apply(7, 1, &removed(&[10, 11]));
    assert_eq!(found(&index, &tokens).of(7).1, 4);
    index.forget_rank(7, 1);
    assert_eq!(found(&index, &tokens).of(7).1, 0);
}

#[test]
fn what_blocks_depend_on_beside_their_tokens_keeps_them_apart() {
    let index = BlockIndex::default();
    let tokens = prompt(&[1]);
    let with = |adapter: &[u8], extra: &[u8]| {
        CacheEvent::Stored(Stored {
            blocks: vec![1],
            tokens: tokens.clone(),
            block_size: SIZE,
            adapter: adapter.to_vec(),
            extras: vec![extra.to_vec()],
            ..Stored::default()
        })
    };
    index.apply(0, 0, &with(b"lora", b""));
    index.apply(1, 0, &with(b"", b"salt"));
    index.apply(2, 0, &with(b"", b""));
    let matches = found(&index, &tokens);
    assert_eq!([0, 1, 2].map(|slot| matches.of(slot).1), [0, 0, SIZE]);
    // Models are named by their adapters, alone or behind the base model.
    for (model, adapter) in [
        ("lora", "lora"),
        ("base:lora", "lora"),
        ("base", ""),
        ("base:7b", ""),
        ("", ""),
    ] {
        assert_eq!(index.adapter_in(model.as_bytes()), adapter.as_bytes());
    }
    let mut matches = Matches::default();
    matches.find(&index, &tokens, b"lora");
    assert_eq!([0, 1, 2].map(|slot| matches.of(slot).1), [SIZE, 0, 0]);
}

#[test]
fn too_many_blocks_are_refused_and_wrong_events_change_nothing() {
    let index = BlockIndex::bounded(3, 5);
    index.apply(0, 0, &stored(&[1, 2, 3, 4], None, &prompt(&[1, 2, 3, 4])));
    index.apply(1, 0, &stored(&[1, 2, 3], None, &prompt(&[1, 2, 3])));
    assert_eq!(index.blocks(), [3, 2]);
    assert_eq!(index.counts.refused.load(Relaxed), 2);
    // One that is known may come again, and makes room when it goes.
    index.apply(0, 0, &stored(&[1], None, &prompt(&[1])));
    index.apply(0, 0, &removed(&[3, 99]));
    index.apply(1, 0, &stored(&[3], Some(2), &prompt(&[3])));
    assert_eq!(index.blocks(), [2, 3]);
    // A parent that is not known, and tokens that are too few or too many.
    index.apply(2, 0, &stored(&[8], Some(77), &prompt(&[1])));
    index.apply(2, 0, &stored(&[8], None, &prompt(&[1])[..3]));
    index.apply(2, 0, &stored(&[8], None, &prompt(&[1, 2])));
    assert_eq!(index.counts.orphaned.load(Relaxed), 3);
    // Sizes beyond what requests are hashed for.
    let sizes: HashSet<u32> = (1..10).collect();
    let index = BlockIndex::default();
    for size in sizes.into_iter().chain([0, 5000]) {
        let one = Stored {
            blocks: vec![u64::from(size)],
            tokens: vec![0; size as usize],
            block_size: size,
            ..Stored::default()
        };
        index.apply(0, 0, &CacheEvent::Stored(one));
    }
    assert_eq!(index.blocks(), [4]);
}

#[test]
fn coverage_is_known_by_worker() {
    let index = BlockIndex::default();
    assert_eq!(
        (index.covered(), found(&index, &[1]).of(3).0),
        (0, Coverage::None)
    );
    index.cover(3, Coverage::Whole);
    index.cover(1, Coverage::Part);
    let matches = found(&index, &[1]);
    let all = [0, 1, 2, 3].map(|slot| matches.of(slot).0);
    assert_eq!(
        all,
        [
            Coverage::None,
            Coverage::Part,
            Coverage::None,
            Coverage::Whole
        ]
    );
    assert_eq!(index.covered(), 1);
    index.forget(3);
    assert_eq!(index.covered(), 0);
}

#[test]
fn requests_read_while_events_change_what_they_read() {
    let index = BlockIndex::default();
    let path: Vec<u32> = (0..64).collect();
    let (tokens, names): (Vec<u32>, Vec<u64>) = (prompt(&path), (1..65).collect());
    std::thread::scope(|scope| {
        for slot in 0..4 {
            let (index, tokens, names) = (&index, &tokens, &names);
            scope.spawn(move || {
                for _ in 0..200 {
                    index.apply(slot, 0, &stored(names, None, tokens));
                    for name in names.iter().rev() {
                        index.apply(slot, 0, &removed(&[*name]));
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let matches = found(&index, &tokens);
                    assert!((0..4).all(|slot| matches.of(slot).1 <= 256));
                }
            });
        }
    });
    assert_eq!(index.content(), 0);
}

#[test]
fn a_hash_that_stands_for_other_content_now_has_lost_the_former() {
    let index = BlockIndex::default();
    index.apply(0, 0, &stored(&[5], None, &prompt(&[1])));
    index.apply(0, 0, &stored(&[5], None, &prompt(&[2])));
    let has = |letter| found(&index, &prompt(&[letter])).of(0).1;
    assert_eq!((has(1), has(2), index.content()), (0, SIZE, 1));
}
