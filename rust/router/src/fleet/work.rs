//! What a worker is at: prompts whose answers have not begun, and streams that go on. It explains for how long the worker
//! may be silent, which is learned from how long it and others were.
//!
//! Nothing is counted per request. Each lane notes once a tick what waits on it, so that what was noted in this tick or
//! the one before is what waits now.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::base::clock::Tick;
use crate::base::route::Route;
use crate::fleet::wait_history::{RequestKind, SIZES};

/// Prompts by route and size.
const PROMPTS: usize = Route::COUNT * SIZES;

#[derive(Debug)]
pub struct Work {
    /// When such prompts last waited.
    waited: [AtomicU32; PROMPTS],
    /// When a prompt last waited whose size is not known.
    unsized_waited: AtomicU32,
    /// When a client last waited for more of a stream.
    streams: AtomicU32,
    /// The longest recent silences while such prompts waited, and none of a larger size.
    silences: [AtomicU32; PROMPTS],
}

impl Default for Work {
    fn default() -> Self {
        let never = || std::array::from_fn(|_| AtomicU32::new(0));
        Work {
            waited: never(),
            unsized_waited: AtomicU32::new(0),
            streams: AtomicU32::new(0),
            silences: never(),
        }
    }
}

impl Work {
    /// A prompt waits, with a body of `len` bytes if that is known.
    pub fn prompt_waits(&self, route: Route, len: Option<usize>, now: Tick) {
        let waited = match len {
            Some(len) => &self.waited[RequestKind::new(route, true, len).prompt()],
            None => &self.unsized_waited,
        };
        waited.store(now, Relaxed);
    }

    /// A client waits for more of a stream.
    pub fn stream_waits(&self, now: Tick) {
        self.streams.store(now, Relaxed);
    }

    /// True if a client waits for more of a stream.
    pub fn has_streams(&self, now: Tick) -> bool {
        is_recent(&self.streams, now)
    }

    /// Nobody got anything from the worker for so long, although a stream waited.
    pub fn was_silent(&self, silence: Tick, now: Tick) {
        if let Some(largest) = self.largest_prompts(now) {
            for prompt in largest {
                self.silences[prompt.prompt()].fetch_max(silence, Relaxed);
            }
        }
    }

    /// The longest recent silence while such prompts waited.
    pub fn longest_silence(&self, prompt: RequestKind) -> Tick {
        self.silences[prompt.prompt()].load(Relaxed)
    }

    /// The prompts of the largest size that waits, by route, as kinds of requests for streams. None if the size of one
    /// is not known.
    pub fn largest_prompts(&self, now: Tick) -> Option<impl Iterator<Item = RequestKind>> {
        if is_recent(&self.unsized_waited, now) {
            return None;
        }
        let waiting = move || {
            let prompts = self.waited.iter().enumerate();
            let waiting = prompts.filter(move |(_, waited)| is_recent(waited, now));
            waiting.map(|(prompt, _)| prompt)
        };
        let largest = waiting().map(|prompt| prompt % SIZES).max();
        let largest = waiting().filter(move |prompt| Some(prompt % SIZES) == largest);
        Some(largest.map(RequestKind::of_prompt))
    }

    /// Halves the longest silences, so that they are forgotten in time.
    pub fn fade(&self) {
        for silence in &self.silences {
            let half = |silence| (silence > 0).then_some(silence / 2);
            let _ = silence.fetch_update(Relaxed, Relaxed, half);
        }
    }
}

fn is_recent(at: &AtomicU32, now: Tick) -> bool {
    match at.load(Relaxed) {
        0 => false,
        at => at.saturating_add(1) >= now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(len: usize) -> RequestKind {
        RequestKind::new(Route::of("/v1/chat/completions"), true, len)
    }

    #[test]
    fn what_was_not_noted_lately_does_not_wait() {
        let (work, route) = (Work::default(), Route::of("/v1/chat/completions"));
        let largest = |now| {
            work.largest_prompts(now)
                .map(|kinds| kinds.collect::<Vec<_>>())
        };
        assert_eq!((largest(1), work.has_streams(1)), (Some(Vec::new()), false));
        work.prompt_waits(route, Some(10), 7);
        work.prompt_waits(route, Some(5_000), 7);
        work.stream_waits(7);
        assert_eq!(
            (largest(8), work.has_streams(8)),
            (Some(vec![chat(6_000)]), true)
        );
        assert_eq!((largest(9), work.has_streams(9)), (Some(Vec::new()), false));
        work.prompt_waits(route, None, 9);
        assert_eq!((largest(10), largest(11)), (None, Some(Vec::new())));
    }

    #[test]
    fn a_silence_is_put_down_to_the_largest_prompts_and_fades() {
        let (work, route) = (Work::default(), Route::of("/v1/chat/completions"));
        let silences = || [10, 5_000].map(|len| work.longest_silence(chat(len)));
        work.prompt_waits(route, Some(10), 7);
        work.was_silent(4, 7);
        work.prompt_waits(route, Some(5_000), 7);
        work.was_silent(9, 7);
        work.was_silent(3, 7);
        assert_eq!(silences(), [4, 9]);
        work.prompt_waits(route, None, 8);
        work.was_silent(100, 8);
        work.fade();
        assert_eq!(silences(), [2, 4]);
    }
}
