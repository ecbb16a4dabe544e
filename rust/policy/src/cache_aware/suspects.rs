//! When to believe that a worker has forgotten what it was thought to have cached.

use crate::tree::Stamp;

/// A worker that has lost something has most likely lost everything it saw before that, as caches forget
/// the least recently used first. One miss alone may have other reasons; the second one counts, unless
/// something as old as the first was found in between.
#[derive(Default)]
pub struct Suspects {
    /// By worker's slot: when the newest thing that was missed had been seen.
    missed: Vec<Option<Stamp>>,
}

impl Suspects {
    /// Notes that what the worker saw at `seen` was not cached. Returns whether that is to be believed.
    pub fn miss(&mut self, worker: u32, now: Stamp, seen: Stamp) -> bool {
        let missed = self.of(worker);
        let is_second = missed.is_some();
        if missed.is_none_or(|earlier| now.since(earlier) > now.since(seen)) {
            *missed = Some(seen);
        }
        is_second
    }

    /// Notes that what the worker saw at `seen` was cached.
    pub fn hit(&mut self, worker: u32, now: Stamp, seen: Stamp) {
        let missed = self.of(worker);
        if missed.is_some_and(|earlier| now.since(earlier) <= now.since(seen)) {
            *missed = None;
        }
    }

    /// Nothing the worker saw until now matters any more.
    pub fn forget(&mut self, worker: u32) {
        *self.of(worker) = None;
    }

    fn of(&mut self, worker: u32) -> &mut Option<Stamp> {
        let index = worker as usize;
        if self.missed.len() <= index {
            self.missed.resize(index + 1, None);
        }
        &mut self.missed[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_miss_counts_unless_something_as_old_was_found() {
        let now = Stamp::from(100);
        let at = Stamp::from;
        let mut suspects = Suspects::default();
        assert!(!suspects.miss(3, now, at(40)));
        suspects.hit(3, now, at(60));
        assert!(suspects.miss(3, now, at(20)));
        suspects.hit(3, now, at(30));
        assert!(!suspects.miss(3, now, at(20)));
        assert!(!suspects.miss(0, now, at(20)));
    }
}
