//! What a client has not taken of its answer yet. It waits here, so that the worker and the request's place need not.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::{Buf, Bytes, BytesMut};

/// Bytes that one client may leave. Of a longer answer the rest waits at its worker.
const MOST: usize = 64 << 20;

/// Bytes that all clients together may leave.
const MOST_OF_ALL: usize = 1 << 30;

/// The bytes that wait for one client.
pub struct Unsent {
    pieces: VecDeque<Bytes>,
    len: usize,
    /// The bytes that wait for any client.
    of_all: Arc<AtomicUsize>,
}

impl Unsent {
    pub fn new(of_all: Arc<AtomicUsize>) -> Self {
        Unsent {
            pieces: VecDeque::new(),
            len: 0,
            of_all,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies as much as there is room for, and returns how much that was.
    pub fn take_in(&mut self, bufs: &[IoSlice<'_>]) -> usize {
        let room = MOST
            .saturating_sub(self.len)
            .min(MOST_OF_ALL.saturating_sub(self.of_all.load(Relaxed)));
        let offered: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut piece = BytesMut::with_capacity(offered.min(room));
        for buf in bufs {
            let left = piece.capacity() - piece.len();
            piece.extend_from_slice(&buf[..buf.len().min(left)]);
        }
        let taken = piece.len();
        if taken > 0 {
            self.pieces.push_back(piece.freeze());
            self.len += taken;
            self.of_all.fetch_add(taken, Relaxed);
        }
        taken
    }

    /// The first of the bytes, as one call writes them.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        const AT_ONCE: usize = 64;
        let first = self.pieces.iter().take(AT_ONCE);
        first.map(|piece| IoSlice::new(piece)).collect()
    }

    /// Forgets this many of the first bytes, which were sent.
    pub fn advance(&mut self, mut count: usize) {
        self.len -= count;
        self.of_all.fetch_sub(count, Relaxed);
        while let Some(first) = self.pieces.front_mut() {
            if count < first.len() {
                return first.advance(count);
            }
            count -= first.len();
            self.pieces.pop_front();
        }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.len, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(unsent: &Unsent) -> Vec<u8> {
        unsent.pieces.iter().flatten().copied().collect()
    }

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came() {
        let of_all = Arc::default();
        let mut unsent = Unsent::new(Arc::clone(&of_all));
        assert_eq!(
            unsent.take_in(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")]),
            5
        );
        assert_eq!(unsent.take_in(&[IoSlice::new(b"fg")]), 2);
        assert_eq!(unsent.slices().len(), 2);
        unsent.advance(1);
        assert_eq!(all(&unsent), b"bcdefg");
        unsent.advance(5);
        assert_eq!((all(&unsent), unsent.len()), (b"g".to_vec(), 1));
        assert_eq!(of_all.load(Relaxed), 1);
        unsent.advance(1);
        assert!(unsent.is_empty() && unsent.slices().is_empty());
        unsent.take_in(&[IoSlice::new(b"h")]);
        drop(unsent);
        assert_eq!(of_all.load(Relaxed), 0);
    }

    #[test]
    fn there_is_a_bound_for_one_and_for_all() {
        let of_all = Arc::default();
        let mut unsent = Unsent::new(Arc::clone(&of_all));
        let much = vec![0; MOST - 1];
        assert_eq!(unsent.take_in(&[IoSlice::new(&much)]), MOST - 1);
        assert_eq!(unsent.take_in(&[IoSlice::new(b""), IoSlice::new(b"ab")]), 1);
        assert_eq!(unsent.take_in(&[IoSlice::new(b"b")]), 0);
        let mut another = Unsent::new(Arc::clone(&of_all));
        of_all.store(MOST_OF_ALL - 2, Relaxed);
        assert_eq!(another.take_in(&[IoSlice::new(b"abc")]), 2);
        assert_eq!(another.take_in(&[IoSlice::new(b"c")]), 0);
        another.advance(1);
        assert_eq!(another.take_in(&[IoSlice::new(b"c")]), 1);
    }
}
