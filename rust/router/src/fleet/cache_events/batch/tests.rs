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
               "block_size": 2, "lora_id": null, "session_id": "s"}),
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
    let all = json!([["AllBlocksCleared"], ["Newer", 1, {"a": 2}], ["BlockRemoved", [1], null]]);
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
    assert_eq!(read.adapter, b"lora");
    assert_eq!(read.extras, [packed(json!(["salt"])), vec![]]);
    let CacheEvent::Stored(repeated) = one(json!([
        "BlockStored",
        [1, 2, 3],
        null,
        [1, 2, 3],
        1,
        4,
        "GPU",
        "lora",
        [["lora", "salt"], ["lora"], ["other"]]
    ])) else {
        panic!();
    };
    let kept = [json!(["lora", "salt"]), json!(null), json!(["other"])].map(packed);
    assert_eq!(repeated.extras, [kept[0].clone(), vec![], kept[2].clone()]);
    let CacheEvent::Stored(salted) = one(json!({
        "type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [1], "block_size": 1,
        "lora_id": null, "cache_salt": "x", "lora_name": "lora"
    })) else {
        panic!();
    };
    assert_eq!(
        salted.adapter,
        [b"lora".to_vec(), packed(json!("x"))].concat()
    );
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
