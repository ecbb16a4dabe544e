//! Ways to copy a tensor into memory that is there already, as an arena's is.

use divan::Bencher;
use divan::counter::BytesCount;

const MIB: usize = 1 << 20;
const SIZES: [usize; 5] = [MIB, 8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB];

fn main() {
    divan::main();
}

/// # Safety
/// As `ptr::copy_nonoverlapping` for `len` bytes.
type Copy = unsafe fn(*const u8, *mut u8, usize);

fn measure(bencher: Bencher, len: usize, copy: Copy) {
    let source: Vec<u8> = (0..len).map(|i| i as u8).collect();
    let mut target = vec![1u8; len];
    bencher
        .counter(BytesCount::new(len))
        // SAFETY: both are that long.
        .bench_local(|| unsafe { copy(source.as_ptr(), target.as_mut_ptr(), len) });
}

#[divan::bench(args = SIZES, sample_count = 30)]
fn ours(bencher: Bencher, len: usize) {
    measure(bencher, len, sglang_omni_payload::copy);
}

#[divan::bench(args = SIZES, sample_count = 30)]
fn plain(bencher: Bencher, len: usize) {
    measure(bencher, len, std::ptr::copy_nonoverlapping::<u8>);
}

#[divan::bench(args = SIZES, sample_count = 30)]
fn plain_in_two_threads(bencher: Bencher, len: usize) {
    measure(bencher, len, in_two);
}

/// # Safety
/// As `ptr::copy_nonoverlapping` for `len` bytes.
unsafe fn in_two(from: *const u8, to: *mut u8, len: usize) {
    let half = len / 2;
    let (from, to) = (from as usize, to as usize);
    std::thread::scope(|scope| {
        for start in [0, half] {
            // SAFETY: the halves are disjoint parts of what the caller vouches for.
            scope.spawn(move || unsafe {
                std::ptr::copy_nonoverlapping(
                    (from + start) as *const u8,
                    (to + start) as *mut u8,
                    half,
                );
            });
        }
    });
}
