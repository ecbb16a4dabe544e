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

    pub fn push(&mut self, data: Bytes, expected: usize) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.joined.is_empty() {
            self.joined
                .reserve(expected.max(self.first.len() + data.len()));
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
