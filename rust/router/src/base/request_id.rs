//! A request's id, which headers, answers and the logs of client, router and worker share.

use std::hash::{BuildHasher, RandomState};

use bytes::BytesMut;
use hyper::header::HeaderValue;

/// The longest id that is accepted from a client.
const MAX_LENGTH: usize = 128;

/// The longest id that is accepted from a worker, which may be a client's id with something added.
const MAX_WORKERS_LENGTH: usize = 4 * MAX_LENGTH;

/// Digits of an id: 64 random bits for each lane of each process, and a count.
const LENGTH: usize = PREFIX + COUNT;
const PREFIX: usize = 16;
const COUNT: usize = 12;

/// Memory that is allocated for many ids at once.
const BLOCK: usize = 128 * LENGTH;

/// A request's id, and where it comes from.
#[derive(Clone)]
pub struct RequestId {
    pub value: HeaderValue,
    /// Whether the router made it, because the client gave none.
    pub is_made_here: bool,
}

impl RequestId {
    /// Adopts the id in a worker's answer, so that both logs have the same one. It replaces an id that was made here,
    /// or a client's id that it extends (`{id}-...`).
    pub fn settle(&mut self, answered: Option<&HeaderValue>) {
        let Some(answered) = answered else { return };
        let is_visible = answered.as_bytes().iter().all(u8::is_ascii_graphic);
        if !is_visible || !(1..=MAX_WORKERS_LENGTH).contains(&answered.len()) {
            return;
        }
        let extends = |id: &HeaderValue| {
            let rest = answered.as_bytes().strip_prefix(id.as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"-"))
        };
        if self.is_made_here || extends(&self.value) {
            self.value = answered.clone();
        }
    }
}

/// Makes ids that are unique, here and among routers, without a clock or a lock.
pub struct RequestIds {
    prefix: [u8; PREFIX],
    count: u64,
    memory: BytesMut,
}

impl Default for RequestIds {
    fn default() -> Self {
        RequestIds {
            // The standard library seeds every `RandomState` from the system.
            prefix: hex(RandomState::new().hash_one(0)),
            count: 0,
            memory: BytesMut::new(),
        }
    }
}

impl RequestIds {
    pub fn next(&mut self) -> HeaderValue {
        self.count += 1;
        if self.memory.capacity() < LENGTH {
            self.memory = BytesMut::with_capacity(BLOCK);
        }
        self.memory.extend_from_slice(&self.prefix);
        self.memory.extend_from_slice(&hex::<COUNT>(self.count));
        HeaderValue::from_maybe_shared(self.memory.split().freeze())
            .expect("hexadecimal digits may stand in a header")
    }
}

/// A name that nothing else has.
pub fn unique() -> String {
    let id = RequestIds::default().next();
    String::from_utf8_lossy(id.as_bytes()).into_owned()
}

/// The last `N` hexadecimal digits.
fn hex<const N: usize>(number: u64) -> [u8; N] {
    std::array::from_fn(|index| {
        let digit = number >> (4 * (N - 1 - index)) & 15;
        b"0123456789abcdef"[digit as usize]
    })
}

/// Whether a client's id can be used as it is: visible ASCII of a sensible length.
pub fn is_usable(value: &HeaderValue) -> bool {
    (1..=MAX_LENGTH).contains(&value.len())
        && value.as_bytes().iter().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_within_a_lane_and_between_lanes() {
        let (mut one, mut other) = (RequestIds::default(), RequestIds::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            for id in [one.next(), other.next()] {
                assert_eq!(id.len(), LENGTH);
                assert!(is_usable(&id));
                assert!(seen.insert(id));
            }
        }
    }

    #[test]
    fn digits_are_the_last_ones() {
        assert_eq!(&hex::<4>(0x0123_4567_89ab_cdef), b"cdef");
        assert_eq!(&hex::<16>(0x0123_4567_89ab_cdef), b"0123456789abcdef");
    }

    #[test]
    fn what_a_worker_answers_with_counts_unless_the_client_chose() {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let settled = |is_made_here, answered: Option<&str>| {
            let mut id = RequestId {
                value: value("mine"),
                is_made_here,
            };
            id.settle(answered.map(value).as_ref());
            id.value
        };
        for (is_made_here, answered, expected) in [
            (true, Some("theirs"), "theirs"),
            (true, None, "mine"),
            (true, Some("two words"), "mine"),
            (false, Some("theirs"), "mine"),
            (false, Some("mine-2"), "mine-2"),
            (false, Some("mine2"), "mine"),
        ] {
            assert_eq!(settled(is_made_here, answered), expected, "{answered:?}");
        }
    }

    #[test]
    fn what_a_client_may_choose() {
        let value = |text: &[u8]| HeaderValue::from_bytes(text).unwrap();
        assert!(is_usable(&value(b"req-1/{trace}")));
        assert!(is_usable(&value(&[b'x'; MAX_LENGTH])));
        for wrong in [&b""[..], b"two words", b"caf\xe9", &[b'x'; MAX_LENGTH + 1]] {
            assert!(!is_usable(&value(wrong)), "{wrong:?}");
        }
    }
}
