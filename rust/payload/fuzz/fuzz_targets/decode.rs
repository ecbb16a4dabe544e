//! Any bytes: an error, or tensors every element of which lies in the payload. Run with a limit on
//! single allocations, so that a count that is believed too early is found too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sglang_omni_payload::{MAX_DIMS, TensorView, decode, extent};

/// The lowest and one past the highest byte of a tensor's elements.
fn bounds(tensor: &TensorView) -> (i64, i64) {
    let (low, high) = extent(tensor.dtype.itemsize, &tensor.shape, &tensor.strides)
        .expect("a decoded tensor's extent fits");
    let first = i64::try_from(tensor.offset).expect("an offset into memory");
    (first + low, first + high)
}

fuzz_target!(|payload: &[u8]| {
    let Ok(decoded) = decode(payload) else {
        return;
    };
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
    std::hint::black_box(skeleton);
});
