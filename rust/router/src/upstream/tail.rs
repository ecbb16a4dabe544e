//! The last bytes of an answer, which hold its usage.

/// Bytes that hold the usage of every server known, and the fields some of them write behind it.
pub const KEPT: usize = 1024;

pub struct Tail {
    bytes: [u8; KEPT],
    len: usize,
}

impl Default for Tail {
    fn default() -> Self {
        Tail {
            bytes: [0; KEPT],
            len: 0,
        }
    }
}

impl Tail {
    pub fn clear(&mut self) {
        self.len = 0;
    }

    pub fn push(&mut self, data: &[u8]) {
        let data = &data[data.len().saturating_sub(KEPT)..];
        let kept = self.len.min(KEPT - data.len());
        self.bytes.copy_within(self.len - kept..self.len, 0);
        self.bytes[kept..kept + data.len()].copy_from_slice(data);
        self.len = kept + data.len();
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
