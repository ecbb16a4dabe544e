//! Decides when a worker has lost text that it was expected to have cached.

use crate::tree::Stamp;

/// Caches evict the least recently used text first, so a worker that has lost some text has most likely lost
/// all older text too. One miss alone may have other reasons; the second one counts, unless text as old as the
/// first was found cached in between.
#[derive(Default)]
pub struct Suspects {
    /// By worker's slot: when the worker had last seen the newest missed text.
    missed: Vec<Option<Stamp>>,
}

impl Suspects {
    /// Records that text the worker saw at `seen` was not cached. Returns whether the loss is now believed.
    pub fn miss(&mut self, worker: u32, now: Stamp, seen: Stamp) -> bool {
        let missed = self.of(worker);
        let is_second = missed.is_some();
        if missed.is_none_or(|earlier| now.since(earlier) > now.since(seen)) {
            *missed = Some(seen);
        }
        is_second
    }

    /// Records that text the worker saw at `seen` was cached.
    pub fn hit(&mut self, worker: u32, now: Stamp, seen: Stamp) {
        let missed = self.of(worker);
        if missed.is_some_and(|earlier| now.since(earlier) <= now.since(seen)) {
            *missed = None;
        }
    }

    /// Forgets the worker's misses.
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
