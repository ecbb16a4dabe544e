//! Joins the chunks of a body.

use bytes::{Bytes, BytesMut};

/// Chunks, collected without a copy if there is only one.
#[derive(Default)]
pub struct Pieces {
    first: Bytes,
    joined: BytesMut,
}

impl Pieces {
    pub fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    /// Adds a chunk. Room for all that is `expected` is made only once enough has come: who announces much may send
    /// little.
    pub fn push(&mut self, data: Bytes, expected: usize) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.joined.is_empty() {
            let now = self.first.len() + data.len();
            self.joined.reserve(expected.min(8 * now).max(now));
            self.joined
                .extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&data);
    }

    pub fn join(self) -> Bytes {
        if self.joined.is_empty() {
            self.first
        } else {
            self.joined.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_for_what_comes_and_not_for_what_is_announced() {
        let mut pieces = Pieces::default();
        for _ in 0..2 {
            pieces.push(Bytes::from_static(b"a"), 1 << 20);
        }
        assert!(pieces.joined.capacity() < 1 << 10);
        let mut pieces = Pieces::default();
        for _ in 0..16 {
            pieces.push(vec![1; 1 << 16].into(), 1 << 20);
        }
        assert!(pieces.joined.capacity() <= 1 << 20);
        assert_eq!(pieces.join(), vec![1; 1 << 20]);
    }
}
