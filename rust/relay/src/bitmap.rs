//! A set of small numbers that several threads and processes change without a lock.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

#[cfg(feature = "loom")]
use loom::sync::atomic::AtomicU64;
#[cfg(not(feature = "loom"))]
use std::sync::atomic::AtomicU64;

/// Numbers below `64 * WORDS`. A thread that takes a number sees everything that happened before it was put in.
///
/// Each number is one bit, so there are no nodes and no ABA problem. The lowest number is taken first: it was in use
/// before and its memory is warm. Any bit pattern is valid, because the set may lie in memory that other processes
/// write.
#[repr(C, align(64))]
pub struct Bitmap<const WORDS: usize> {
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Bitmap<WORDS> {
    pub fn empty() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub fn full() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
        }
    }

    pub fn put(&self, number: u32) {
        self.words[number as usize / 64].fetch_or(1 << (number % 64), AcqRel);
    }

    /// Takes the lowest number. `None` if each word was empty when it was read.
    pub fn take(&self) -> Option<u32> {
        for (index, word) in self.words.iter().enumerate() {
            let mut bits = word.load(Acquire);
            while bits != 0 {
                let rest = bits & (bits - 1);
                match word.compare_exchange(bits, rest, AcqRel, Acquire) {
                    Ok(_) => return Some(64 * index as u32 + bits.trailing_zeros()),
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    /// Takes all numbers; cheap if there are none.
    pub fn drain(&self, mut each: impl FnMut(u32)) {
        for (index, word) in self.words.iter().enumerate() {
            if word.load(Acquire) != 0 {
                each_bit(index, word.swap(0, AcqRel), &mut each);
            }
        }
    }

    /// How many numbers there are; the words are read one after the other.
    pub fn len(&self) -> usize {
        let count = |word: &AtomicU64| word.load(Acquire).count_ones() as usize;
        self.words.iter().map(count).sum()
    }

    /// Calls `each` for every number that is not in the set; the words are read one after the other.
    pub fn each_missing(&self, mut each: impl FnMut(u32)) {
        for (index, word) in self.words.iter().enumerate() {
            each_bit(index, !word.load(Acquire), &mut each);
        }
    }
}

fn each_bit(index: usize, mut bits: u64, each: &mut impl FnMut(u32)) {
    while bits != 0 {
        each(64 * index as u32 + bits.trailing_zeros());
        bits &= bits - 1;
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_goes_first_and_each_once() {
        let set = Bitmap::<2>::empty();
        assert_eq!(set.take(), None);
        for number in [100, 3, 64, 127] {
            set.put(number);
        }
        assert_eq!([set.take(), set.take()], [Some(3), Some(64)]);
        let mut rest = Vec::new();
        set.drain(|number| rest.push(number));
        assert_eq!(rest, [100, 127]);
        assert_eq!(set.take(), None);
    }

    #[test]
    fn what_is_missing_is_what_was_taken() {
        let set = Bitmap::<2>::full();
        let taken: Vec<u32> = (0..70).map(|_| set.take().unwrap()).collect();
        let mut missing = Vec::new();
        set.each_missing(|number| missing.push(number));
        assert_eq!(missing, taken);
    }
}
