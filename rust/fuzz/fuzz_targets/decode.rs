//! Any bytes: an error, or tensors every element of which lies in the payload, and a skeleton that
//! promises no more than is there. Run with a limit on single allocations, so that a count that is
//! believed too early is found too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sglang_omni_payload::msgpack::{Token, TokenReader};
use sglang_omni_payload::{MAX_DIMS, TensorView, copy_head, decode, decode_head, extent};

/// The lowest and one past the highest byte of a tensor's elements.
fn bounds(tensor: &TensorView) -> (i64, i64) {
    let (low, high) = extent(tensor.dtype.itemsize, &tensor.shape, &tensor.strides)
        .expect("a decoded tensor's extent fits");
    let first = i64::try_from(tensor.offset).expect("an offset into memory");
    (first + low, first + high)
}

/// Reads a message and the messages in its extensions; what containers promise there are bytes for.
fn walk(message: &[u8]) {
    let mut bodies = vec![message];
    while let Some(body) = bodies.pop() {
        let mut reader = TokenReader::new(body);
        let mut promised = 0;
        while let Ok(token) = reader.next_token() {
            match token {
                Token::Array(len) => promised += len,
                Token::Map(len) => promised += 2 * len,
                Token::Ext(_, body) => bodies.push(body),
                _ => {}
            }
        }
        assert!(promised <= body.len(), "{promised} elements in {body:?}");
    }
}

fuzz_target!(|payload: &[u8]| {
    // SAFETY: a slice's own bytes.
    let head = unsafe { copy_head(payload.as_ptr(), payload.len()) };
    let by_head = decode_head(&head, payload.len());
    let Ok(decoded) = decode(payload) else {
        assert!(by_head.is_err(), "{by_head:?}");
        return;
    };
    assert_eq!(by_head.as_ref(), Ok(&decoded));
    let skeleton = &payload[decoded.skeleton.clone()];
    for tensor in &decoded.tensors {
        assert!(tensor.shape.len() <= MAX_DIMS);
        assert_eq!(tensor.shape.len(), tensor.strides.len());
        let (low, high) = bounds(tensor);
        if tensor.shape.contains(&0) {
            continue;
        }
        // Behind the skeleton and before the end: nothing else can be read through a tensor.
        assert!(low >= decoded.skeleton.end as i64, "{tensor:?}");
        assert!(high <= payload.len() as i64, "{tensor:?}");
        std::hint::black_box((payload[low as usize], payload[high as usize - 1]));
    }
    walk(skeleton);
});
