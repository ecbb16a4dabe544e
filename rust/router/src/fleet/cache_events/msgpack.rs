//! A cursor over MessagePack data that builds no values, does not recurse and allocates nothing.

/// One item. Of arrays and maps, how many items follow: a map of `n` pairs has `2n`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    Nil,
    Bool(bool),
    /// Negative numbers as two's complement, which is how hashes come that are signed.
    Int(u64),
    Negative(u64),
    Float,
    Bytes(&'a [u8]),
    Text(&'a [u8]),
    Array(usize),
    Map(usize),
    Other,
}

#[derive(Clone, Copy)]
pub struct Unpacker<'a> {
    left: &'a [u8],
}

impl<'a> Unpacker<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Unpacker { left: bytes }
    }

    /// The next item; None if the data end within it.
    pub fn item(&mut self) -> Option<Item<'a>> {
        let first = self.byte()?;
        Some(match first {
            0x00..=0x7f => Item::Int(first.into()),
            0x80..=0x8f => Item::Map(usize::from(first & 0x0f) * 2),
            0x90..=0x9f => Item::Array(usize::from(first & 0x0f)),
            0xa0..=0xbf => Item::Text(self.take(usize::from(first & 0x1f))?),
            0xc0 => Item::Nil,
            0xc2 | 0xc3 => Item::Bool(first == 0xc3),
            0xc4..=0xc6 => {
                let length = self.length(first - 0xc4)?;
                Item::Bytes(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(first - 0xc7)?;
                self.take(length.checked_add(1)?)?;
                Item::Other
            }
            0xca => self.take(4).map(|_| Item::Float)?,
            0xcb => self.take(8).map(|_| Item::Float)?,
            0xcc..=0xcf => Item::Int(self.number(1 << (first - 0xcc))?),
            0xd0..=0xd3 => {
                let bits = 8 << (first - 0xd0);
                let number = (self.number(bits / 8)? << (64 - bits)) as i64 >> (64 - bits);
                match number {
                    0.. => Item::Int(number as u64),
                    _ => Item::Negative(number as u64),
                }
            }
            0xd4..=0xd8 => {
                self.take(1 + (1 << (first - 0xd4)))?;
                Item::Other
            }
            0xd9..=0xdb => {
                let length = self.length(first - 0xd9)?;
                Item::Text(self.take(length)?)
            }
            0xdc | 0xdd => Item::Array(self.length(first - 0xdc + 1)?),
            0xde | 0xdf => Item::Map(self.length(first - 0xde + 1)?.checked_mul(2)?),
            0xe0..=0xff => Item::Negative(i64::from(first as i8) as u64),
            0xc1 => return None,
        })
    }

    /// Skips one value with all that it contains, and returns its bytes.
    pub fn skip(&mut self) -> Option<&'a [u8]> {
        let before = self.left;
        let mut pending = 1usize;
        while pending > 0 {
            pending -= 1;
            if let Item::Array(count) | Item::Map(count) = self.item()? {
                pending = pending.checked_add(count)?;
            }
        }
        Some(&before[..before.len() - self.left.len()])
    }

    /// The length of an array that comes next. Each of its items takes a byte, so there are not more than bytes.
    pub fn array(&mut self) -> Option<usize> {
        match self.item()? {
            Item::Array(count) if count <= self.left.len() => Some(count),
            _ => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(count)?;
        self.left = left;
        Some(taken)
    }

    /// A length of `2^power` bytes.
    fn length(&mut self, power: u8) -> Option<usize> {
        usize::try_from(self.number(1 << power)?).ok()
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        let digits = self.take(bytes)?.iter();
        Some(digits.fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_item_is_read() {
        let all: &[(&[u8], Item<'_>)] = &[
            (b"\x07", Item::Int(7)),
            (b"\xff", Item::Negative(u64::MAX)),
            (b"\xcc\xff", Item::Int(255)),
            (b"\xcd\x01\x00", Item::Int(256)),
            (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", Item::Int(u64::MAX)),
            (b"\xd0\xfe", Item::Negative(-2i64 as u64)),
            (b"\xd1\x00\x05", Item::Int(5)),
            (b"\xd3\x80\0\0\0\0\0\0\0", Item::Negative(1 << 63)),
            (b"\xc0", Item::Nil),
            (b"\xc3", Item::Bool(true)),
            (b"\xcb\0\0\0\0\0\0\0\0", Item::Float),
            (b"\xa2hi", Item::Text(b"hi")),
            (b"\xd9\x02hi", Item::Text(b"hi")),
            (b"\xc4\x01x", Item::Bytes(b"x")),
            (b"\xc5\x00\x01x", Item::Bytes(b"x")),
            (b"\x92", Item::Array(2)),
            (b"\xdc\x00\x03", Item::Array(3)),
            (b"\xdd\x00\x00\x00\x03", Item::Array(3)),
            (b"\x82", Item::Map(4)),
            (b"\xde\x00\x01", Item::Map(2)),
            (b"\xd4\x01\x02", Item::Other),
            (b"\xc7\x01\x05\x06", Item::Other),
        ];
        for (bytes, item) in all {
            let mut whole = Unpacker::new(bytes);
            assert_eq!(
                (whole.item(), whole.left),
                (Some(*item), &b""[..]),
                "{bytes:x?}"
            );
            for end in 0..bytes.len() {
                assert_eq!(Unpacker::new(&bytes[..end]).item(), None, "{bytes:x?}");
            }
        }
        assert_eq!(Unpacker::new(b"\xc1").item(), None);
    }

    #[test]
    fn values_are_skipped_however_deep_and_lengths_are_not_believed() {
        let nested = [&[0x91; 100_000][..], b"\x01", b"\x02"].concat();
        let mut unpacker = Unpacker::new(&nested);
        assert_eq!(unpacker.skip().map(<[u8]>::len), Some(100_001));
        assert_eq!(unpacker.item(), Some(Item::Int(2)));
        assert_eq!(Unpacker::new(&[0x91; 1000]).skip(), None);
        let huge = [0xdd, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Unpacker::new(&huge).array(), None);
        assert_eq!(Unpacker::new(&huge).skip(), None);
    }
}
