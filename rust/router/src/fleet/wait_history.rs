//! Remembers how long requests of each kind have waited for a worker's first byte. This tells a slow answer from a
//! worker that hangs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::clock::Tick;
use crate::base::route::Route;

pub const SIZES: usize = 4;
const KINDS: usize = Route::COUNT * 2 * SIZES;

/// Requests of one kind wait about equally long for a first byte: they have the same route, are all streamed or all
/// not, and have bodies of about the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKind(usize);

impl RequestKind {
    pub fn new(route: Route, is_streamed: bool, body_len: usize) -> RequestKind {
        // Up to 4 KiB, 32 KiB, 256 KiB, and more.
        let size = (body_len >> 12)
            .checked_ilog2()
            .map_or(0, |log| (log as usize / 3 + 1).min(SIZES - 1));
        RequestKind((route.index() * 2 + usize::from(is_streamed)) * SIZES + size)
    }

    pub fn is_streamed(self) -> bool {
        self.0 / SIZES % 2 == 1
    }

    /// The index of its route and size among all routes and sizes.
    pub fn prompt(self) -> usize {
        self.0 / (2 * SIZES) * SIZES + self.0 % SIZES
    }

    /// The kind that asks for a stream, of that route and size.
    pub fn of_prompt(prompt: usize) -> RequestKind {
        RequestKind((prompt / SIZES * 2 + 1) * SIZES + prompt % SIZES)
    }

    /// The kinds that take at least as long: this one, and those with larger bodies.
    fn and_larger(self) -> std::ops::Range<usize> {
        self.0..(self.0 / SIZES + 1) * SIZES
    }
}

/// For each kind, the tick of the last first byte (high half) and the longest recent wait for one (low half).
#[derive(Debug)]
pub struct WaitHistory([AtomicU64; KINDS]);

impl Default for WaitHistory {
    fn default() -> Self {
        WaitHistory(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

fn pack(last: Tick, longest: Tick) -> u64 {
    u64::from(last) << 32 | u64::from(longest)
}

fn unpack(packed: u64) -> (Tick, Tick) {
    ((packed >> 32) as Tick, packed as Tick)
}

impl WaitHistory {
    pub fn record(&self, kind: RequestKind, now: Tick, waited: Tick) {
        // Writes once a tick at most, unless a wait was longer than any.
        let _ = self.0[kind.0].fetch_update(Relaxed, Relaxed, |packed| {
            let (last, longest) = unpack(packed);
            let updated = pack(last.max(now), longest.max(waited));
            (updated != packed).then_some(updated)
        });
    }

    /// Halves the longest waits, so that they are forgotten in time.
    pub fn fade(&self) {
        for slot in &self.0 {
            let _ = slot.fetch_update(Relaxed, Relaxed, |packed| {
                let (last, longest) = unpack(packed);
                (longest > 0).then(|| pack(last, longest / 2))
            });
        }
    }

    /// The tick at which a request of this kind or a larger one last got its first byte, and the longest wait for one.
    pub fn of(&self, kind: RequestKind) -> (Tick, Tick) {
        self.0[kind.and_larger()]
            .iter()
            .map(|slot| unpack(slot.load(Relaxed)))
            .fold((0, 0), |(last, longest), slot| {
                (last.max(slot.0), longest.max(slot.1))
            })
    }
}

/// Whether a body asks for a stream, as far as can be told without parsing it.
pub fn asks_for_stream(body: &[u8]) -> bool {
    memchr::memmem::find_iter(body, br#""stream""#).any(|at| {
        let rest = body[at + 8..].trim_ascii_start();
        rest.strip_prefix(b":")
            .is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_tell_paths_streams_and_sizes_apart() {
        let chat = |is_streamed, len| {
            RequestKind::new(Route::of("/v1/chat/completions"), is_streamed, len)
        };
        assert_eq!(chat(true, 0), chat(true, 4095));
        assert_ne!(chat(true, 100), chat(false, 100));
        assert_ne!(
            chat(true, 100),
            RequestKind::new(Route::of("/v1/completions"), true, 100)
        );
        assert_ne!(
            chat(false, 100),
            RequestKind::new(Route::of("/v1/embeddings"), false, 100)
        );
        let sizes = [0, 5_000, 40_000, 300_000].map(|len| chat(true, len).0);
        assert_eq!(sizes.map(|kind| kind - sizes[0]), [0, 1, 2, 3]);
        assert_eq!(chat(true, usize::MAX).0, sizes[3]);
    }

    #[test]
    fn larger_requests_count_for_smaller_ones_and_old_waits_fade() {
        let first = WaitHistory::default();
        let (small, large) = (
            RequestKind::new(Route::of("/a"), true, 10),
            RequestKind::new(Route::of("/a"), true, 10_000),
        );
        first.record(large, 7, 12);
        assert_eq!((first.of(small), first.of(large)), ((7, 12), (7, 12)));
        first.record(small, 9, 1);
        assert_eq!((first.of(small), first.of(large)), ((9, 12), (7, 12)));
        assert_eq!(
            first.of(RequestKind::new(Route::of("/a"), false, 10)),
            (0, 0)
        );
        first.fade();
        assert_eq!(first.of(large), (7, 6));
    }

    #[test]
    fn streams_are_asked_for_in_several_ways() {
        for body in [r#"{"stream":true}"#, r#"{"a": 1, "stream" : true, "b": 2}"#] {
            assert!(asks_for_stream(body.as_bytes()), "{body}");
        }
        for body in [
            "",
            r#"{"stream": false}"#,
            r#"{"prompt": "stream: true"}"#,
            r#"{"stream""#,
        ] {
            assert!(!asks_for_stream(body.as_bytes()), "{body}");
        }
    }
}
