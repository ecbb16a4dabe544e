//! Copies a tensor into a payload, the one time that it is copied.

use std::thread;

/// A copy of this size or more is split over threads if there are cores to spare.
const SPLIT: usize = 32 << 20;
/// A copy of this size or more would push everything else out of the cache, and its own beginning too.
const AROUND_CACHE: usize = 16 << 20;

/// Copies `len` bytes in the way that is fastest for that size.
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, and the two ranges do not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // Asked only for large copies: the answer takes 30 us of system calls.
    let threads = if len < SPLIT {
        1
    } else {
        thread::available_parallelism()
            .map_or(1, |n| n.get() / 2)
            .min(4)
    };
    let one = if len < AROUND_CACHE {
        plain
    } else {
        around_cache()
    };
    if threads < 2 {
        // SAFETY: the caller's promise.
        return unsafe { one(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { split(one, from, to, len, threads) };
}

/// Copies parts in a thread each, or in this thread if no more threads can be started.
///
/// # Safety
/// The same as for [`copy`].
unsafe fn split(one: CopyFn, from: *const u8, to: *mut u8, len: usize, threads: usize) {
    let part = len.div_ceil(threads).next_multiple_of(4096);
    let (from, to) = (from as usize, to as usize);
    thread::scope(|scope| {
        for start in (0..len).step_by(part) {
            let size = part.min(len - start);
            let copy_part = move || {
                // SAFETY: the parts are disjoint and together the range that the caller vouches for.
                unsafe { one((from + start) as *const u8, (to + start) as *mut u8, size) };
            };
            if thread::Builder::new()
                .spawn_scoped(scope, copy_part)
                .is_err()
            {
                copy_part();
            }
        }
    });
}

type CopyFn = unsafe fn(*const u8, *mut u8, usize);

/// # Safety
/// The same as for [`copy`].
unsafe fn plain(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

fn around_cache() -> CopyFn {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        return x86::non_temporal;
    }
    plain
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    const LINE: usize = 64;

    /// Writes whole cache lines without reading them first: that reading is a third of a large copy's traffic.
    ///
    /// # Safety
    /// The same as for [`super::copy`], on a machine with AVX.
    #[target_feature(enable = "avx")]
    pub unsafe fn non_temporal(from: *const u8, to: *mut u8, len: usize) {
        let head = to.align_offset(LINE).min(len);
        let end = head + (len - head) / LINE * LINE;
        // SAFETY: head, lines and tail are disjoint parts of the range that the caller vouches for, and the
        // lines' targets are aligned.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            for line in (head..end).step_by(LINE) {
                let source = from.add(line).cast::<__m256i>();
                let target = to.add(line).cast::<__m256i>();
                let halves = (
                    _mm256_loadu_si256(source),
                    _mm256_loadu_si256(source.add(1)),
                );
                _mm256_stream_si256(target, halves.0);
                _mm256_stream_si256(target.add(1), halves.1);
            }
            std::ptr::copy_nonoverlapping(from.add(end), to.add(end), len - end);
        }
        // Without this, a later write that tells a reader of the copy could overtake the copy.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_copies_what_it_is_asked_to_and_nothing_else() {
        let source: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for (from, to, len) in [
            (0, 0, 99_968),
            (3, 1, 4097),
            (1, 63, 70),
            (5, 64, 20),
            (0, 9, 0),
        ] {
            for way in [copy, plain, around_cache()] {
                let mut target = vec![9u8; 100_100];
                // SAFETY: both vectors are longer than that.
                unsafe { way(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(
                    target[..to]
                        .iter()
                        .chain(&target[to + len..])
                        .all(|&byte| byte == 9)
                );
            }
        }
    }

    /// Runs in a process of its own and takes all of its memory, so that no thread's stack fits.
    #[test]
    #[ignore = "run by the test below"]
    fn alone_without_room_for_threads() {
        let len = 8 << 20;
        let source: Vec<u8> = (0..len).map(|i| (i ^ (i >> 11)) as u8).collect();
        let mut target = vec![0u8; len];
        let mut taken: Vec<Vec<u8>> = Vec::with_capacity(1 << 12);
        for size in [1 << 20, 64 << 10] {
            let mut more = Vec::new();
            while more.try_reserve_exact(size).is_ok() {
                taken.push(std::mem::take(&mut more));
            }
        }
        assert!(thread::Builder::new().spawn(|| ()).is_err());
        // SAFETY: both vectors are that long.
        unsafe { split(plain, source.as_ptr(), target.as_mut_ptr(), len, 4) };
        drop(taken);
        assert!(source == target);
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_copy_needs_no_threads() {
        let name = "copy::tests::alone_without_room_for_threads";
        let run = std::process::Command::new("sh")
            .arg("-c")
            .arg(r#"ulimit -v 300000 && exec "$0" --exact "$1" --ignored --test-threads=1"#)
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(
            said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&run.stderr)
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes an hour")]
    fn a_large_copy_arrives_whole() {
        let len = SPLIT + 12_345;
        let source: Vec<u8> = (0..len).map(|i| (i ^ (i >> 11)) as u8).collect();
        let mut target = vec![0u8; len];
        // SAFETY: both vectors are that long.
        unsafe { copy(source.as_ptr(), target.as_mut_ptr(), len) };
        assert!(source == target);
    }
}
