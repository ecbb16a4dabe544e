//! Any body: a key no longer than a small multiple of it. Of a body that is JSON the cursor passes over the whole value,
//! and the model is the one that a JSON parser reads.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sglang_omni_policy::key::json::Cursor;
use sglang_omni_policy::key::scan::scan;

/// A medium, of which one digit is the shortest, takes the bytes of its hash and a mark.
const MOST_FOR_A_BYTE: usize = 17;

fuzz_target!(|body: &[u8]| {
    let mut key = Vec::new();
    let found = scan(body, &mut key);
    assert!(
        key.len() <= MOST_FOR_A_BYTE * (body.len() + 1),
        "{}",
        key.len()
    );
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    let skipped = Cursor::new(body).skip().map(<[u8]>::trim_ascii_end);
    assert_eq!(skipped, Some(body.trim_ascii()));
    let Value::Object(fields) = value else {
        return;
    };
    assert!(!found.is_cut);
    // A parser also finds a name that is written with escapes.
    if !body.contains(&b'\\') {
        let model = fields.get("model").and_then(Value::as_str).unwrap_or("");
        assert_eq!(found.model, model.as_bytes());
    }
});
