//! Reads the batches that SGLang and vLLM publish, in the forms of their versions.
//!
//! A batch is `[time, events, rank]` and an event `[kind, field, ...]`, or both are maps with the fields' names (vLLM
//! from 0.20 on). Older versions leave out the last fields, newer ones have more. Sources: `vllm/distributed/kv_events.py`
//! and `sglang/srt/disaggregation/kv_events.py`.

use sglang_omni_policy::blocks::chain;
use sglang_omni_policy::blocks::event::{CacheEvent, Stored, Tier};

use super::msgpack::{Item, Unpacker};

/// The fields after an event's kind where these have no names.
const STORED: [&[u8]; 10] = [
    b"block_hashes",
    b"parent_block_hash",
    b"token_ids",
    b"block_size",
    b"lora_id",
    b"medium",
    b"lora_name",
    b"extra_keys",
    b"group_idx",
    b"kv_cache_spec_kind",
];
const REMOVED: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];

/// Of a model with several kinds of attention, the group of layers whose blocks count: the first one that attends to the
/// whole prompt. What other groups keep is not enough to go on from.
#[derive(Debug, Default)]
pub struct BlockGroup(Option<u64>);

/// An event as it is written.
#[derive(Default)]
struct Fields<'a> {
    blocks: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    block_size: u32,
    lora_id: &'a [u8],
    lora_name: &'a [u8],
    tier: Tier,
    extras: Vec<Vec<u8>>,
    group: Option<u64>,
    is_partial: bool,
}

/// Appends the events of a batch; None if it is none. What comes before the mistake is in `events` then.
pub fn read(payload: &[u8], group: &mut BlockGroup, events: &mut Vec<CacheEvent>) -> Option<()> {
    let mut batch = Unpacker::new(payload);
    match batch.item()? {
        Item::Array(2..) => {
            batch.skip()?;
        }
        Item::Map(fields) => {
            for _ in 0..fields / 2 {
                if batch.item()? == Item::Text(b"events") {
                    return read_events(&mut batch, group, events);
                }
                batch.skip()?;
            }
            return None;
        }
        _ => return None,
    }
    read_events(&mut batch, group, events)
}

fn read_events(
    batch: &mut Unpacker<'_>,
    group: &mut BlockGroup,
    events: &mut Vec<CacheEvent>,
) -> Option<()> {
    for _ in 0..batch.array()? {
        let written = batch.skip()?;
        events.extend(read_event(written, group)?);
    }
    Some(())
}

/// Some(None) for an event that changes nothing that is known here, as one of a kind of a later version.
fn read_event(written: &[u8], group: &mut BlockGroup) -> Option<Option<CacheEvent>> {
    let mut event = Unpacker::new(written);
    let mut fields = Fields::default();
    let kind = match event.item()? {
        Item::Array(count @ 1..) => {
            let Item::Text(kind) = event.item()? else {
                return None;
            };
            let names: &[&[u8]] = match kind {
                b"BlockStored" => &STORED,
                b"BlockRemoved" => &REMOVED,
                _ => &[],
            };
            for name in names.iter().take(count - 1) {
                fields.read(name, &mut event)?;
            }
            kind
        }
        Item::Map(count) => {
            let mut kind = &b""[..];
            for _ in 0..count / 2 {
                match event.item()? {
                    Item::Text(b"type") => match event.item()? {
                        Item::Text(name) => kind = name,
                        _ => return None,
                    },
                    Item::Text(name) => fields.read(name, &mut event)?,
                    _ => return None,
                }
            }
            kind
        }
        _ => return None,
    };
    Some(match kind {
        b"BlockStored" if group.counts(fields.group, Some(!fields.is_partial)) => {
            Some(CacheEvent::Stored(fields.stored()))
        }
        b"BlockRemoved" if group.counts(fields.group, None) => Some(CacheEvent::Removed {
            blocks: fields.blocks,
            tier: fields.tier,
        }),
        b"AllBlocksCleared" => Some(CacheEvent::Cleared),
        _ => None,
    })
}

impl BlockGroup {
    /// True if an event of this group counts. `is_whole`: its layers attend to the whole prompt, if the event says so.
    fn counts(&mut self, group: Option<u64>, is_whole: Option<bool>) -> bool {
        match (group, is_whole) {
            (None, is_whole) => is_whole.unwrap_or(true),
            (Some(_), Some(false)) => false,
            (Some(group), Some(true)) => *self.0.get_or_insert(group) == group,
            (Some(group), None) => self.0.is_none_or(|known| known == group),
        }
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self, name: &[u8], event: &mut Unpacker<'a>) -> Option<()> {
        match name {
            b"block_hashes" => {
                let count = event.array()?;
                self.blocks.reserve(count);
                for _ in 0..count {
                    self.blocks.push(hash(event.item()?)?);
                }
            }
            b"parent_block_hash" => {
                let item = event.item()?;
                if item != Item::Nil {
                    self.parent = Some(hash(item)?);
                }
            }
            b"token_ids" => {
                let mut ids = Unpacker::new(event.skip()?);
                let count = ids.array()?;
                self.tokens.reserve(count);
                for _ in 0..count {
                    let Item::Int(id) = ids.item()? else {
                        // Pairs of tokens, of speculative decoding: no request can be compared with them.
                        self.tokens.clear();
                        self.is_partial = true;
                        break;
                    };
                    self.tokens.push(u32::try_from(id).ok()?);
                }
            }
            b"block_size" => match event.item()? {
                Item::Int(size) => self.block_size = u32::try_from(size).ok()?,
                _ => return None,
            },
            b"lora_id" => self.lora_id = set(event.skip()?),
            // What follows the medium has other meanings in some versions, and then other types.
            b"lora_name" => {
                let written = event.skip()?;
                if let Some(Item::Text(_)) = Unpacker::new(written).item() {
                    self.lora_name = set(written);
                }
            }
            b"medium" => {
                self.tier = match event.item()? {
                    Item::Nil | Item::Text(b"GPU") => Tier::Fast,
                    Item::Text(_) => Tier::Slow,
                    _ => return None,
                }
            }
            b"extra_keys" => {
                let mut keys = Unpacker::new(event.skip()?);
                if let Item::Array(count) = keys.item()? {
                    for _ in 0..count {
                        self.extras.push(set(keys.skip()?).to_vec());
                    }
                }
            }
            b"group_idx" => {
                if let Some(Item::Int(group)) = Unpacker::new(event.skip()?).item() {
                    self.group = Some(group);
                }
            }
            b"kv_cache_spec_kind" => {
                if let Some(Item::Text(kind)) = Unpacker::new(event.skip()?).item() {
                    self.is_partial |= is_partial(kind);
                }
            }
            _ => {
                event.skip()?;
            }
        }
        Some(())
    }

    fn stored(self) -> Stored {
        let adapter = match self.lora_name {
            b"" => self.lora_id,
            name => name,
        };
        Stored {
            blocks: self.blocks,
            parent: self.parent,
            tokens: self.tokens,
            block_size: self.block_size,
            adapter: adapter.to_vec(),
            extras: self.extras,
            tier: self.tier,
        }
    }
}

/// True if layers of this kind keep only a part of what they have seen.
fn is_partial(kind: &[u8]) -> bool {
    let names = ["sliding", "mamba", "chunked", "cross", "encoder"];
    let kind = kind.to_ascii_lowercase();
    let has = |name: &str| memchr::memmem::find(&kind, name.as_bytes()).is_some();
    names.into_iter().any(has)
}

fn hash(item: Item<'_>) -> Option<u64> {
    match item {
        Item::Int(hash) | Item::Negative(hash) => Some(hash),
        Item::Bytes(hash) | Item::Text(hash) => Some(chain::of_bytes(hash)),
        _ => None,
    }
}

/// A value as it is written; empty if it is nil, or says nothing.
fn set(written: &[u8]) -> &[u8] {
    match written {
        b"\xc0" | b"\x90" | b"\xa0" => b"",
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// MessagePack of a JSON value. A text that begins with `0x` becomes bytes.
    fn pack(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Null => out.push(0xc0),
            Value::Bool(is) => out.push(0xc2 + u8::from(*is)),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => out.extend([&[0xcf][..], &number.to_be_bytes()].concat()),
                (_, Some(number)) => out.extend([&[0xd3][..], &number.to_be_bytes()].concat()),
                _ => out.extend([&[0xcb][..], &number.as_f64().unwrap().to_be_bytes()].concat()),
            },
            Value::String(text) => {
                let (kind, text) = match text.strip_prefix("0x") {
                    Some(bytes) => (0xc4, bytes),
                    None => (0xd9, text.as_str()),
                };
                out.extend([kind, text.len() as u8]);
                out.extend(text.as_bytes());
            }
            Value::Array(items) => {
                out.extend([&[0xdd][..], &(items.len() as u32).to_be_bytes()].concat());
                items.iter().for_each(|item| pack(item, out));
            }
            Value::Object(fields) => {
                out.extend([&[0xdf][..], &(fields.len() as u32).to_be_bytes()].concat());
                for (name, value) in fields {
                    pack(&json!(name), out);
                    pack(value, out);
                }
            }
        }
    }

    fn packed(value: Value) -> Vec<u8> {
        let mut out = Vec::new();
        pack(&value, &mut out);
        out
    }

    fn events(value: Value) -> Option<Vec<CacheEvent>> {
        let mut events = Vec::new();
        read(&packed(value), &mut BlockGroup::default(), &mut events).map(|()| events)
    }

    fn one(event: Value) -> CacheEvent {
        let mut all = events(json!([1.5, [event]])).unwrap();
        assert_eq!(all.len(), 1);
        all.pop().unwrap()
    }

    fn stored() -> Stored {
        Stored {
            blocks: vec![11, 12],
            parent: Some(10),
            tokens: vec![1, 2, 3, 4],
            block_size: 2,
            ..Stored::default()
        }
    }

    #[test]
    fn events_of_every_version_are_read() {
        let plain = CacheEvent::Stored(stored());
        for form in [
            // SGLang, from the first version on.
            json!(["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, null]),
            json!(["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, null, "GPU"]),
            json!(["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, null, "GPU", {"metadata": [1]}, 5]),
            // vLLM.
            json!([
                "BlockStored",
                [11, 12],
                10,
                [1, 2, 3, 4],
                2,
                null,
                null,
                null,
                [null, null],
                0,
                "full_attention",
                3,
                4
            ]),
            json!({"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": 10, "token_ids": [1, 2, 3, 4],
                   "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "new": {"a": [1]}}),
        ] {
            let CacheEvent::Stored(mut read) = one(form.clone()) else {
                panic!("{form}");
            };
            read.extras
                .retain(|extra| !extra.is_empty() && extra[0] != 0xdf);
            assert_eq!(CacheEvent::Stored(read), plain, "{form}");
        }
        let bytes = one(json!([
            "BlockStored",
            ["0xab"],
            "0xcd",
            [1, 2],
            2,
            7,
            "CPU_PINNED"
        ]));
        let read = Stored {
            blocks: vec![chain::of_bytes(b"ab")],
            parent: Some(chain::of_bytes(b"cd")),
            tokens: vec![1, 2],
            block_size: 2,
            adapter: packed(json!(7)),
            tier: Tier::Slow,
            ..Stored::default()
        };
        assert_eq!(bytes, CacheEvent::Stored(read));
        let negative = one(json!(["BlockRemoved", [-5]]));
        let gone = |blocks, tier| CacheEvent::Removed { blocks, tier };
        assert_eq!(negative, gone(vec![-5i64 as u64], Tier::Fast));
        let slow = one(json!({"type": "BlockRemoved", "block_hashes": [5], "medium": "CPU"}));
        assert_eq!(slow, gone(vec![5], Tier::Slow));
        assert_eq!(one(json!(["AllBlocksCleared"])), CacheEvent::Cleared);
        assert_eq!(
            one(json!({"type": "AllBlocksCleared"})),
            CacheEvent::Cleared
        );
    }

    #[test]
    fn batches_of_every_version_are_read_and_unknown_events_passed_over() {
        let all =
            json!([["AllBlocksCleared"], ["Newer", 1, {"a": 2}], ["BlockRemoved", [1], null]]);
        for batch in [
            json!([1.0, all]),
            json!([1.0, all, 3]),
            json!([1.0, all, null, "more"]),
            json!({"ts": 1.0, "events": all, "data_parallel_rank": 1}),
        ] {
            assert_eq!(events(batch).unwrap().len(), 2);
        }
    }

    #[test]
    fn what_a_block_depends_on_is_kept() {
        let CacheEvent::Stored(read) = one(json!([
            "BlockStored",
            [1, 2],
            null,
            [1, 2],
            1,
            4,
            "GPU",
            "lora",
            [["salt"], null]
        ])) else {
            panic!();
        };
        assert_eq!(read.adapter, packed(json!("lora")));
        assert_eq!(read.extras, [packed(json!(["salt"])), vec![]]);
    }

    #[test]
    fn of_several_groups_the_first_whole_one_counts() {
        let stored = |group, kind| {
            json!([
                "BlockStored",
                [1],
                null,
                [1],
                1,
                null,
                "GPU",
                null,
                null,
                group,
                kind
            ])
        };
        let removed = |group| json!(["BlockRemoved", [1], "GPU", group]);
        let count = |all: &[Value]| events(json!([1.0, all])).unwrap().len();
        assert_eq!(
            count(&[stored(0, "sliding_window"), stored(1, "full_attention")]),
            1
        );
        assert_eq!(count(&[stored(1, "full_attention"), removed(0)]), 1);
        assert_eq!(count(&[stored(1, "full_attention"), removed(1)]), 2);
        assert_eq!(
            count(&[stored(0, "full_attention"), stored(2, "full_attention")]),
            1
        );
        // Pairs of tokens.
        assert_eq!(
            count(&[json!(["BlockStored", [1], null, [[1, 2]], 1, null])]),
            0
        );
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        for wrong in [
            json!(null),
            json!([1.0]),
            json!([1.0, 2]),
            json!({"ts": 1.0}),
            json!([1.0, [[]]]),
            json!([1.0, [[1, 2]]]),
            json!([1.0, [["BlockRemoved", 5]]]),
            json!([
                1.0,
                [
                    ["BlockStored", [1], null, [-1], 1, null],
                    ["BlockStored", [1.5]]
                ]
            ]),
            json!([1.0, [["BlockStored", [1], null, [1], -1]]]),
            json!([1.0, [{"type": 5}]]),
        ] {
            assert_eq!(events(wrong.clone()), None, "{wrong}");
        }
        let whole = packed(json!([
            1.5,
            [["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, null, "GPU"]]
        ]));
        for end in 0..whole.len() {
            let mut events = Vec::new();
            assert!(read(&whole[..end], &mut BlockGroup::default(), &mut events).is_none());
        }
    }
}
