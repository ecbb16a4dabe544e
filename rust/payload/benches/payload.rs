//! A payload of many small tensors, and one large one: laying it out, writing it, reading it back.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use sglang_omni_payload::{DTYPES, Framework, Plan, Source, decode};

const SKELETON: [u8; 4096] = [7; 4096];
/// How many tensors of how many bytes.
const SHAPES: [(usize, usize); 3] = [(1, 1 << 20), (200, 64 << 10), (2000, 64)];

fn main() {
    divan::main();
}

/// Tensors of two dimensions, each in memory of its own.
fn sources(memory: &[Vec<u8>]) -> Vec<Source> {
    let source = |tensor: &Vec<u8>| Source {
        framework: Framework::Torch,
        dtype: DTYPES[1],
        address: tensor.as_ptr() as usize,
        shape: vec![4, tensor.len() as u64 / 4],
        strides: vec![tensor.len() as i64 / 4, 1],
    };
    memory.iter().map(source).collect()
}

fn memory((count, len): (usize, usize)) -> Vec<Vec<u8>> {
    vec![vec![3; len]; count]
}

fn packed(plan: &Plan) -> Vec<u8> {
    let mut bytes = vec![0; plan.len() as usize];
    // SAFETY: `bytes` is that long, and the sources' memory is still there.
    unsafe { plan.write_to(bytes.as_mut_ptr()) };
    bytes
}

#[divan::bench(args = SHAPES)]
fn lay_out(bencher: Bencher, shape: (usize, usize)) {
    let memory = memory(shape);
    let sources = sources(&memory);
    bencher
        .counter(ItemsCount::new(shape.0))
        .bench_local(|| Plan::new(&SKELETON, &sources).unwrap());
}

#[divan::bench(args = SHAPES)]
fn write(bencher: Bencher, shape: (usize, usize)) {
    let memory = memory(shape);
    let plan = Plan::new(&SKELETON, &sources(&memory)).unwrap();
    let mut bytes = packed(&plan);
    bencher
        .counter(BytesCount::new(bytes.len()))
        // SAFETY: `bytes` is as long as the plan says, and the sources' memory is still there.
        .bench_local(|| unsafe { plan.write_to(bytes.as_mut_ptr()) });
}

#[divan::bench(args = SHAPES)]
fn read_back(bencher: Bencher, shape: (usize, usize)) {
    let memory = memory(shape);
    let bytes = packed(&Plan::new(&SKELETON, &sources(&memory)).unwrap());
    bencher
        .counter(ItemsCount::new(shape.0))
        .bench_local(|| decode(&bytes).unwrap().tensors.len());
}
