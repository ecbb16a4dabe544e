//! Any batches of events, from two workers: what is read is no larger than what came, nothing fails, and a worker that is
//! forgotten leaves nothing behind.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sglang_omni_policy::blocks::event::CacheEvent;
use sglang_omni_policy::blocks::index::BlockIndex;
use sglang_omni_policy::blocks::matches::Matches;
use sglang_omni_router::fuzzing::batch::{BlockGroup, read};

fuzz_target!(|data: &[u8]| {
    let index = BlockIndex::default();
    let mut group = BlockGroup::default();
    let mut matches = Matches::default();
    for (number, batch) in data.split(|&byte| byte == 0xc1).enumerate() {
        let mut events = Vec::new();
        let _ = read(batch, &mut group, &mut events);
        for event in &events {
            if let CacheEvent::Stored(stored) = event {
                let items = stored.blocks.len() + stored.tokens.len() + stored.extras.len();
                assert!(items <= batch.len());
                matches.find(&index, &stored.tokens, &stored.adapter);
            }
            index.apply(number as u32 % 2, 0, event);
            if let CacheEvent::Stored(stored) = event {
                matches.find(&index, &stored.tokens, b"");
            }
        }
    }
    (0..2).for_each(|slot| index.forget(slot));
    assert_eq!(index.blocks().iter().sum::<u64>(), 0);
});
