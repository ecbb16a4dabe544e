//! Any end of an answer, in any pieces: usage that can be true or none, and the same as of its last bytes in one piece.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sglang_omni_router::fuzzing::tail::{KEPT, Tail};
use sglang_omni_router::fuzzing::usage::read;

fuzz_target!(|answer: &[u8]| {
    let Some((&piece, text)) = answer.split_first() else {
        return;
    };
    let mut tail = Tail::default();
    for piece in text.chunks(usize::from(piece) + 1) {
        tail.push(piece);
    }
    let kept = &text[text.len().saturating_sub(KEPT)..];
    assert_eq!(tail.bytes(), kept);
    if let Some(usage) = read(tail.bytes()) {
        assert!(usage.prompt_tokens > 0 && usage.cached_tokens <= usage.prompt_tokens);
    }
});
