//! Reads the batches that SGLang and vLLM publish, in the forms of their versions.
//!
//! A batch is `[time, events, rank]` and an event `[kind, field, ...]`, or one or both are maps with the fields' names, as
//! SGLang's events and all of vLLM's are now. Older versions leave out the last fields, newer ones have more. Sources:
//! `vllm/distributed/kv_events.py` and `sglang/srt/disaggregation/kv_events.py` (0.5.23).

use sglang_omni_policy::blocks::chain;
use sglang_omni_policy::blocks::event::{CacheEvent, Stored, Tier};

use super::msgpack::{Item, Unpacker};

#[cfg(test)]
mod tests;

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
    salt: &'a [u8],
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
                if let Some(Item::Text(name)) = Unpacker::new(event.skip()?).item() {
                    self.lora_name = name;
                }
            }
            b"cache_salt" => self.salt = set(event.skip()?),
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

    fn stored(mut self) -> Stored {
        let adapter = match self.lora_name {
            b"" => self.lora_id,
            name => name,
        };
        // vLLM repeats the adapter with each block.
        let is_adapter = |extra: &[u8]| {
            let mut keys = Unpacker::new(extra);
            let is_alone = keys.item() == Some(Item::Array(1));
            is_alone && !adapter.is_empty() && keys.item() == Some(Item::Text(adapter))
        };
        for extra in self.extras.iter_mut().filter(|extra| is_adapter(extra)) {
            extra.clear();
        }
        let adapter = [adapter, self.salt].concat();
        Stored {
            blocks: self.blocks,
            parent: self.parent,
            tokens: self.tokens,
            block_size: self.block_size,
            adapter,
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
