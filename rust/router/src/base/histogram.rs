//! A histogram of durations, with the buckets that Prometheus is shown.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets in microseconds: from an answer out of a cache to a long generation.
#[rustfmt::skip]
pub const BOUNDS_US: [u64; 17] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000, 120_000_000, 300_000_000,
];

const BUCKETS: usize = BOUNDS_US.len() + 1;

/// Relaxed atomics: any thread may observe, and a reader sees each observation soon, if not all at once.
#[derive(Default)]
pub struct Histogram {
    /// Observations in each bucket; the last has no bound.
    counts: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

/// The counts of one or several histograms at one moment.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub counts: [u64; BUCKETS],
    pub sum_us: u64,
}

impl Histogram {
    pub fn observe(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = BOUNDS_US.partition_point(|&bound| bound < micros);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(micros, Relaxed);
    }

    pub fn read(&self) -> Snapshot {
        Snapshot {
            counts: array::from_fn(|bucket| self.counts[bucket].load(Relaxed)),
            sum_us: self.sum_us.load(Relaxed),
        }
    }
}

impl Snapshot {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn add(&mut self, other: &Snapshot) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_us += other.sum_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for micros in [0, 1_000, 1_001, 300_000_000, 300_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let mut read = histogram.read();
        assert_eq!((read.counts[0], read.counts[1]), (2, 1));
        assert_eq!((read.counts[BUCKETS - 2], read.counts[BUCKETS - 1]), (1, 1));
        read.add(&histogram.read());
        assert_eq!((read.count(), read.sum_us), (10, 2 * 600_002_002));
    }
}
