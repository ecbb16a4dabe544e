//! Keeps the last bytes of an answer, which hold its usage.

/// Enough bytes for the usage of every known server, and for the fields that some of them write after it.
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
