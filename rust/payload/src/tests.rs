use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::{
    ALIGN, DTYPES, DecodeError, Decoded, Framework, Plan, Source, VERSION, copy_head, decode,
    decode_head,
};

fn packed(skeleton: &[u8], sources: &[Source]) -> Vec<u8> {
    let plan = Plan::new(skeleton, sources).unwrap();
    let mut bytes = vec![0; plan.len() as usize];
    // SAFETY: `bytes` is as long as the plan says, and the callers keep the sources.
    unsafe { plan.write_to(bytes.as_mut_ptr()) };
    bytes
}

/// A view of `memory`, in elements of one byte.
fn view(memory: &[u8], first: usize, shape: &[u64], strides: &[i64]) -> Source {
    Source {
        framework: Framework::Torch,
        dtype: DTYPES[1],
        address: memory.as_ptr() as usize + first,
        shape: shape.to_vec(),
        strides: strides.to_vec(),
    }
}

#[test]
fn views_of_one_memory_share_a_buffer() {
    let memory: Vec<u8> = (0..100).collect();
    let bytes = packed(
        b"s",
        &[
            view(&memory, 10, &[20], &[1]),
            view(&memory, 25, &[5], &[-2]),
            view(&memory, 40, &[8], &[1]),
        ],
    );
    let decoded = decode(&bytes).unwrap();
    assert_eq!(&bytes[decoded.skeleton], b"s");
    let [a, b, c] = &decoded.tensors[..] else {
        panic!("three tensors")
    };
    assert_eq!(b.offset, a.offset + 15);
    assert_eq!(bytes[b.offset - 8..=b.offset], memory[17..=25]);
    // Memory that touches without overlapping is a buffer of its own, aligned.
    assert_eq!(c.offset as u64 % ALIGN, 0);
    assert_eq!(bytes[c.offset..c.offset + 8], memory[40..48]);
}

#[test]
fn tensors_without_elements_take_no_room() {
    let bytes = packed(b"", &[view(&[], 0, &[0, 3], &[3, 1])]);
    let decoded = decode(&bytes).unwrap();
    assert_eq!(decoded.tensors[0].shape, [0, 3]);
}

#[test]
fn every_cut_is_an_error() {
    let memory = [7; 40];
    let bytes = packed(b"skeleton", &[view(&memory, 0, &[5, 8], &[8, 1])]);
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn hostile_headers_are_errors() {
    let memory = [7; 64];
    let good = packed(
        b"skeleton",
        &[
            view(&memory, 0, &[8, 8], &[8, 1]),
            view(&memory, 1, &[3], &[1]),
        ],
    );
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        decode(&bytes).unwrap_err()
    };
    assert_eq!(with(0, b"X"), DecodeError::BadMagic);
    assert_eq!(
        with(4, &(VERSION + 1).to_le_bytes()),
        DecodeError::UnknownVersion(VERSION + 1)
    );
    assert_eq!(with(6, &[1]), DecodeError::UnknownFlags(1));
    assert_eq!(with(8, &u32::MAX.to_le_bytes()), DecodeError::Truncated);
    assert_eq!(with(12, &u32::MAX.to_le_bytes()), DecodeError::Truncated);
    assert_eq!(with(16, &u64::MAX.to_le_bytes()), DecodeError::Truncated);
    assert_eq!(with(24, &u64::MAX.to_le_bytes()), DecodeError::BadLength);
    assert_eq!(with(32, &[9]), DecodeError::UnknownFramework(9));
    assert_eq!(with(33, &[200]), DecodeError::UnknownDType(200));
    assert_eq!(
        with(34, &300u16.to_le_bytes()),
        DecodeError::TooManyDims(300)
    );
    assert_eq!(with(36, &5u32.to_le_bytes()), DecodeError::OutOfBounds(0));
    assert_eq!(with(40, &60u64.to_le_bytes()), DecodeError::OutOfBounds(0));
    assert_eq!(
        with(48, &u64::MAX.to_le_bytes()),
        DecodeError::OutOfBounds(0)
    );
    assert_eq!(
        with(64, &i64::MIN.to_le_bytes()),
        DecodeError::OutOfBounds(0)
    );
    // Two tensor rows of 2 and 1 dimensions end at 32 + 48 + 32; there the buffer's row is.
    assert_eq!(with(112, &65u64.to_le_bytes()), DecodeError::BadBuffer(0));
    assert_eq!(with(112, &64u64.to_le_bytes()), DecodeError::BadBuffer(0));
    assert_eq!(
        with(120, &u64::MAX.to_le_bytes()),
        DecodeError::BadBuffer(0)
    );
}

/// Decodes as a reader does of memory that others may write to.
fn decode_by_head(payload: &[u8]) -> Result<Decoded, DecodeError> {
    // SAFETY: a slice's own bytes.
    let head = unsafe { copy_head(payload.as_ptr(), payload.len()) };
    decode_head(&head, payload.len())
}

proptest! {
    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes);
        let _ = decode_by_head(&bytes);
    }

    #[test]
    fn changed_payloads_never_lead_outside(
        changes in proptest::collection::vec((0usize..1000, any::<u8>()), 1..6),
        dims in proptest::collection::vec(1u64..4, 0..4),
    ) {
        let memory = vec![3u8; 256];
        let strides: Vec<i64> = (0..dims.len()).map(|d| 1 << d).collect();
        let mut bytes = packed(b"abc", &[view(&memory, 0, &dims, &strides), view(&memory, 100, &[9], &[1])]);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        prop_assert_eq!(decode_by_head(&bytes).ok(), decode(&bytes).ok());
        if let Ok(decoded) = decode(&bytes) {
            for tensor in decoded.tensors {
                let (low, high) = crate::extent(tensor.dtype.itemsize, &tensor.shape, &tensor.strides).unwrap();
                prop_assert!(tensor.offset as i64 + low >= 0);
                prop_assert!(tensor.offset as i64 + high <= bytes.len() as i64);
            }
        }
    }

    #[test]
    fn what_goes_in_comes_out(
        memory in proptest::collection::vec(any::<u8>(), 300),
        views in proptest::collection::vec((0usize..100, 1u64..6, 1u64..6, 0i64..9, 0i64..9), 0..12),
        skeleton in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let sources: Vec<Source> =
            views.iter().map(|&(first, a, b, s, t)| view(&memory, first, &[a, b], &[s, t])).collect();
        let bytes = packed(&skeleton, &sources);
        let decoded = decode(&bytes).unwrap();
        prop_assert_eq!(&bytes[decoded.skeleton], &skeleton[..]);
        prop_assert_eq!(decoded.tensors.len(), views.len());
        let mut copied = BTreeSet::new();
        for (tensor, &(first, a, b, s, t)) in decoded.tensors.iter().zip(&views) {
            prop_assert_eq!(&tensor.shape, &vec![a, b]);
            for i in 0..a as usize {
                for j in 0..b as usize {
                    let step = i * s as usize + j * t as usize;
                    prop_assert_eq!(bytes[tensor.offset + step], memory[first + step]);
                    copied.insert((first + step, tensor.offset + step));
                }
            }
        }
        // A byte of the source has one place in the payload.
        let sources: BTreeSet<usize> = copied.iter().map(|&(from, _)| from).collect();
        prop_assert_eq!(sources.len(), copied.len());
    }
}

#[test]
fn foreign_memory_has_its_place_and_is_left_alone() {
    let (near, far): (Vec<u8>, Vec<u8>) = (vec![1; 100], vec![2; 100]);
    let sources = [
        view(&near, 0, &[100], &[1]),
        view(&far, 10, &[50], &[1]),
        view(&far, 20, &[60], &[1]),
    ];
    let mut plan = Plan::new(b"s", &sources).unwrap();
    plan.set_foreign(sources[1].address);
    let mut bytes = vec![9; plan.len() as usize];
    // SAFETY: `bytes` is as long as the plan says, and the sources live to the end.
    unsafe { plan.write_to(bytes.as_mut_ptr()) };
    let decoded = decode(&bytes).unwrap();
    let offset = decoded.tensors[1].offset;
    // The other view of that memory overlaps, so one buffer holds both.
    let foreign: Vec<_> = plan.foreign().collect();
    assert_eq!(foreign, [(sources[1].address, 70, offset as u64)]);
    assert_eq!(bytes[offset..offset + 70], [9; 70]);
    let first = decoded.tensors[0].offset;
    assert_eq!(bytes[first..first + 100], [1; 100]);
}
