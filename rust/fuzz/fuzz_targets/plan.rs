//! Any views: what is packed is what is unpacked, element by element, as one payload and in every layout without gaps.
//! Views of impossible sizes or strides are refused. Each view takes its bytes from the input.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sglang_omni_payload::{
    DTYPES, Framework, Plan, Source, copy_head, decode, decode_head, extent, layouts,
};

const MEMORY: usize = 4096;
const MOST_VIEWS: usize = 6;
const MOST_ELEMENTS: u64 = 1 << 14;
static MEMORY_BYTES: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..MEMORY).map(|i| (i * 31 + i / 251) as u8).collect());

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The next byte; 0 after the end.
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        byte
    }

    fn wide(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }
}

fn view(input: &mut Input<'_>) -> Source {
    let kind = input.byte();
    let dtype = DTYPES[usize::from(input.byte()) % DTYPES.len()];
    let first = usize::from(input.byte()) * 16 + usize::from(input.byte() % 16);
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for _ in 0..input.byte() % 5 {
        if kind & 2 == 0 {
            shape.push(u64::from(input.byte() % 8));
            strides.push(i64::from(input.byte() as i8) * dtype.itemsize as i64);
        } else {
            shape.push(input.wide());
            strides.push(input.wide() as i64);
        }
    }
    Source {
        framework: match kind & 1 {
            0 => Framework::Torch,
            _ => Framework::Numpy,
        },
        dtype,
        address: MEMORY_BYTES.as_ptr() as usize + first,
        shape,
        strides,
    }
}

/// True if the view's sizes are ones that a tensor can have, it lies in the memory and has no more elements than can be compared: those of a repeated dimension
/// take no memory.
fn is_comparable(source: &Source) -> bool {
    let mut sizes = source.shape.iter();
    let elements = sizes.try_fold(1u64, |count, &size| count.checked_mul(size));
    let is_possible = source.shape.iter().all(|&size| i64::try_from(size).is_ok());
    if !is_possible || elements.is_none_or(|count| count > MOST_ELEMENTS) {
        return false;
    }
    let Some((low, high)) = extent(source.dtype.itemsize, &source.shape, &source.strides) else {
        return false;
    };
    let start = MEMORY_BYTES.as_ptr() as i64;
    let (low, high) = (
        (source.address as i64).checked_add(low),
        (source.address as i64).checked_add(high),
    );
    low.is_some_and(|low| low >= start) && high.is_some_and(|high| high <= start + MEMORY as i64)
}

/// The offsets of a view's bytes, in the order of its elements.
fn offsets(first: i64, item: u64, shape: &[u64], strides: &[i64]) -> Vec<i64> {
    if shape.contains(&0) {
        return Vec::new();
    }
    let mut at = vec![first];
    for (&size, &stride) in shape.iter().zip(strides) {
        let steps = |&start: &i64| (0..size as i64).map(move |i| start + i * stride);
        at = at.iter().flat_map(steps).collect();
    }
    let of_item = |&start: &i64| (0..item as i64).map(move |i| start + i);
    at.iter().flat_map(of_item).collect()
}

/// Compares a view of `packed` with its source.
fn check(source: &Source, packed: &[u8], first: usize, strides: &[i64]) {
    let item = source.dtype.itemsize;
    let from = (source.address - MEMORY_BYTES.as_ptr() as usize) as i64;
    let from = offsets(from, item, &source.shape, &source.strides);
    let to = offsets(first as i64, item, &source.shape, strides);
    for (from, to) in from.into_iter().zip(to) {
        assert_eq!(
            MEMORY_BYTES[from as usize], packed[to as usize],
            "{source:?}"
        );
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let skeleton = vec![7; usize::from(input.byte())];
    let mut sources = Vec::new();
    while !input.0.is_empty() && sources.len() < MOST_VIEWS {
        sources.push(view(&mut input));
    }
    let plan = Plan::new(&skeleton, &sources);
    let layouts = layouts(&sources);
    if !sources.iter().all(is_comparable) {
        return;
    }
    let plan = plan.expect("views of real memory");
    let mut packed = vec![0; plan.len() as usize];
    // SAFETY: `packed` has the plan's length, and the sources are inside `MEMORY_BYTES`.
    unsafe { plan.write_to(packed.as_mut_ptr()) };
    let decoded = decode(&packed).expect("what was just packed");
    // SAFETY: a slice's own bytes.
    let head = unsafe { copy_head(packed.as_ptr(), packed.len()) };
    assert_eq!(decode_head(&head, packed.len()).as_ref(), Ok(&decoded));
    assert_eq!(packed[decoded.skeleton], skeleton[..]);
    assert_eq!(decoded.tensors.len(), sources.len());
    for (source, tensor) in sources.iter().zip(&decoded.tensors) {
        assert_eq!(tensor.shape, source.shape);
        check(source, &packed, tensor.offset, &tensor.strides);
    }
    for layout in layouts {
        let mut gathered = vec![0; layout.len];
        // SAFETY: as above.
        unsafe { layout.gather(gathered.as_mut_ptr()) };
        for (row, offset, strides) in layout.views() {
            check(&sources[row], &gathered, offset, strides);
        }
    }
});
