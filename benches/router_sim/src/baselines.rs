//! Policies to compare with.

use std::collections::HashMap;
use std::sync::Mutex;

use sglang_omni_policy::{Candidate, Candidates, Decision, Policy, RequestKey};

use crate::kv::BLOCK_BYTES;

/// Every prompt of a system prompt on one worker, groups dealt round in the order in which they appear:
/// the best that affinity does without looking at load.
#[derive(Default)]
pub struct PerfectAffinity {
    groups: Mutex<HashMap<Box<[u8]>, usize>>,
}

impl Policy for PerfectAffinity {
    fn pick(&self, candidates: Candidates<'_>, request: &RequestKey<'_>) -> Decision {
        let mut groups = self.groups.lock().unwrap();
        let next = groups.len();
        let start = request.text[..request.text.len().min(BLOCK_BYTES)].into();
        let group = *groups.entry(start).or_insert(next);
        (group % candidates.len()).into()
    }

    fn reads_request(&self) -> bool {
        true
    }
}

/// Everything to the first worker, as a tree that does not spread ties does.
pub struct FirstWorker;

impl Policy for FirstWorker {
    fn pick(&self, _candidates: Candidates<'_>, _request: &RequestKey<'_>) -> Decision {
        0.into()
    }
}

/// `cache_aware` as first published, after its documentation: the shortest queue where the longest exceeds
/// it by 32; else any worker that knows more than half of the prompt; else the smallest tree. The tree is kept
/// in blocks, which is as good for comparing, and nothing is evicted from it.
#[derive(Default)]
pub struct Classic {
    state: Mutex<ClassicState>,
}

#[derive(Default)]
struct ClassicState {
    owners: HashMap<u64, Vec<u32>>,
    blocks: HashMap<u32, usize>,
}

const BALANCE_ABS: usize = 32;
const BALANCE_REL: f64 = 1.0001;
const CACHE_THRESHOLD: f64 = 0.5;

impl Policy for Classic {
    fn pick(&self, candidates: Candidates<'_>, request: &RequestKey<'_>) -> Decision {
        let loads = || candidates.iter().map(|worker| worker.load);
        let (shortest, longest) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        let is_imbalanced =
            longest - shortest > BALANCE_ABS && longest as f64 > shortest as f64 * BALANCE_REL;
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        let mut hash = 0u64;
        let chain: Vec<u64> = request
            .text
            .chunks(BLOCK_BYTES)
            .map(|block| {
                for &byte in block {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
                hash
            })
            .collect();
        let known = chain
            .iter()
            .take_while(|&hash| state.owners.contains_key(hash))
            .count();
        let is_known = known as f64 > CACHE_THRESHOLD * chain.len() as f64;
        let owner = is_known
            .then(|| {
                let index_of = |&slot: &u32| candidates.iter().position(|each| each.slot == slot);
                state.owners[&chain[known - 1]].iter().find_map(index_of)
            })
            .flatten();
        let blocks = |worker: &Candidate| state.blocks.get(&worker.slot).copied().unwrap_or(0);
        let index = match owner {
            _ if is_imbalanced => candidates.least_loaded(),
            Some(index) => index,
            None => candidates.min_by_key(blocks),
        };
        let chosen = candidates.get(index).slot;
        for hash in chain {
            let owners = state.owners.entry(hash).or_default();
            if !owners.contains(&chosen) {
                owners.push(chosen);
                *state.blocks.entry(chosen).or_default() += 1;
            }
        }
        index.into()
    }

    fn reads_request(&self) -> bool {
        true
    }
}
