//! msgpack, written to a buffer and read token by token. Knows nothing of what the values mean.

use std::fmt;

/// Why bytes are not one msgpack value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A value, or the elements a container promised, are not there.
    Truncated,
    /// Bytes are left behind the value.
    Trailing(usize),
    /// 0xc1, the one byte no value starts with.
    Reserved,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "the message is cut off"),
            Self::Trailing(count) => write!(f, "{count} bytes follow the message"),
            Self::Reserved => write!(f, "no message starts with the byte 0xc1"),
        }
    }
}

impl std::error::Error for Malformed {}

/// A value, or the start of a container whose elements are the next tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    Nil,
    Bool(bool),
    Int(i64),
    /// Above `i64::MAX`.
    Uint(u64),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Array(usize),
    /// Pairs, so that twice as many tokens follow.
    Map(usize),
    Ext(i8, &'a [u8]),
}

/// Reads one value.
///
/// A container is refused unless there is a byte for every element that it and the containers around
/// it still owe, so that whoever makes room for the promised elements makes room for no more of them
/// than there are bytes, however deeply hostile containers nest.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Values still to come.
    owed: usize,
}

impl<'a> Reader<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Self {
            rest: message,
            owed: 1,
        }
    }

    /// Ok where exactly one value has been read.
    pub fn finish(&self) -> Result<(), Malformed> {
        match (self.owed, self.rest.len()) {
            (0, 0) => Ok(()),
            (0, left) => Err(Malformed::Trailing(left)),
            _ => Err(Malformed::Truncated),
        }
    }

    #[inline]
    pub fn next_token(&mut self) -> Result<Token<'a>, Malformed> {
        self.owed = self
            .owed
            .checked_sub(1)
            .ok_or(Malformed::Trailing(self.rest.len()))?;
        let [marker] = self.take()?;
        Ok(match marker {
            0x00..=0x7f => Token::Int(i64::from(marker)),
            0x80..=0x8f => self.map(usize::from(marker & 0x0f))?,
            0x90..=0x9f => self.array(usize::from(marker & 0x0f))?,
            0xa0..=0xbf => Token::Str(self.bytes(usize::from(marker & 0x1f))?),
            0xc0 => Token::Nil,
            0xc1 => return Err(Malformed::Reserved),
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4 => {
                let len = self.u8()?;
                Token::Bin(self.bytes(len)?)
            }
            0xc5 => {
                let len = self.u16()?;
                Token::Bin(self.bytes(len)?)
            }
            0xc6 => {
                let len = self.u32()?;
                Token::Bin(self.bytes(len)?)
            }
            0xc7 => {
                let len = self.u8()?;
                self.ext(len)?
            }
            0xc8 => {
                let len = self.u16()?;
                self.ext(len)?
            }
            0xc9 => {
                let len = self.u32()?;
                self.ext(len)?
            }
            0xca => Token::Float(f64::from(f32::from_be_bytes(self.take()?))),
            0xcb => Token::Float(f64::from_be_bytes(self.take()?)),
            0xcc => Token::Int(i64::from(u8::from_be_bytes(self.take()?))),
            0xcd => Token::Int(i64::from(u16::from_be_bytes(self.take()?))),
            0xce => Token::Int(i64::from(u32::from_be_bytes(self.take()?))),
            0xcf => {
                let value = u64::from_be_bytes(self.take()?);
                i64::try_from(value).map_or(Token::Uint(value), Token::Int)
            }
            0xd0 => Token::Int(i64::from(i8::from_be_bytes(self.take()?))),
            0xd1 => Token::Int(i64::from(i16::from_be_bytes(self.take()?))),
            0xd2 => Token::Int(i64::from(i32::from_be_bytes(self.take()?))),
            0xd3 => Token::Int(i64::from_be_bytes(self.take()?)),
            0xd4..=0xd8 => self.ext(1 << (marker - 0xd4))?,
            0xd9 => {
                let len = self.u8()?;
                Token::Str(self.bytes(len)?)
            }
            0xda => {
                let len = self.u16()?;
                Token::Str(self.bytes(len)?)
            }
            0xdb => {
                let len = self.u32()?;
                Token::Str(self.bytes(len)?)
            }
            0xdc => {
                let len = self.u16()?;
                self.array(len)?
            }
            0xdd => {
                let len = self.u32()?;
                self.array(len)?
            }
            0xde => {
                let len = self.u16()?;
                self.map(len)?
            }
            0xdf => {
                let len = self.u32()?;
                self.map(len)?
            }
            0xe0..=0xff => Token::Int(i64::from(marker as i8)),
        })
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<usize, Malformed> {
        Ok(usize::from(u8::from_be_bytes(self.take()?)))
    }

    fn u16(&mut self) -> Result<usize, Malformed> {
        Ok(usize::from(u16::from_be_bytes(self.take()?)))
    }

    fn u32(&mut self) -> Result<usize, Malformed> {
        Ok(u32::from_be_bytes(self.take()?) as usize)
    }

    #[inline]
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn ext(&mut self, len: usize) -> Result<Token<'a>, Malformed> {
        let [code] = self.take()?;
        let body = self.bytes(len)?;
        // The body may be a message with promises of its own, for which only its bytes count.
        self.owe(0)?;
        Ok(Token::Ext(code as i8, body))
    }

    #[inline]
    fn array(&mut self, len: usize) -> Result<Token<'a>, Malformed> {
        self.owe(len)?;
        Ok(Token::Array(len))
    }

    #[inline]
    fn map(&mut self, len: usize) -> Result<Token<'a>, Malformed> {
        self.owe(len.checked_mul(2).ok_or(Malformed::Truncated)?)?;
        Ok(Token::Map(len))
    }

    #[inline]
    fn owe(&mut self, more: usize) -> Result<(), Malformed> {
        self.owed = self.owed.checked_add(more).ok_or(Malformed::Truncated)?;
        if self.owed > self.rest.len() {
            return Err(Malformed::Truncated);
        }
        Ok(())
    }
}

/// What is written has more bytes or elements than msgpack's 32 bits can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(pub usize);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes or elements do not fit a message", self.0)
    }
}

impl std::error::Error for TooLong {}

pub fn write_nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

pub fn write_bool(out: &mut Vec<u8>, value: bool) {
    out.push(0xc2 | u8::from(value));
}

#[inline]
pub fn write_int(out: &mut Vec<u8>, value: i64) {
    if let Ok(value) = u64::try_from(value) {
        return write_uint(out, value);
    }
    if value >= -32 {
        out.push(value as u8);
    } else if let Ok(value) = i8::try_from(value) {
        head(out, 0xd0, value.to_be_bytes());
    } else if let Ok(value) = i16::try_from(value) {
        head(out, 0xd1, value.to_be_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        head(out, 0xd2, value.to_be_bytes());
    } else {
        head(out, 0xd3, value.to_be_bytes());
    }
}

#[inline]
pub fn write_uint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else if let Ok(value) = u8::try_from(value) {
        head(out, 0xcc, value.to_be_bytes());
    } else if let Ok(value) = u16::try_from(value) {
        head(out, 0xcd, value.to_be_bytes());
    } else if let Ok(value) = u32::try_from(value) {
        head(out, 0xce, value.to_be_bytes());
    } else {
        head(out, 0xcf, value.to_be_bytes());
    }
}

pub fn write_float(out: &mut Vec<u8>, value: f64) {
    head(out, 0xcb, value.to_be_bytes());
}

/// `text` is UTF-8, with surrogates as CPython's "surrogatepass" writes them.
#[inline]
pub fn write_str(out: &mut Vec<u8>, text: &[u8]) -> Result<(), TooLong> {
    match text.len() {
        len @ 0..=31 => out.push(0xa0 | len as u8),
        len @ 32..=0xff => head(out, 0xd9, (len as u8).to_be_bytes()),
        len @ 0x100..=0xffff => head(out, 0xda, (len as u16).to_be_bytes()),
        len => head(out, 0xdb, long(len)?),
    }
    out.extend_from_slice(text);
    Ok(())
}

pub fn write_bin(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TooLong> {
    match bytes.len() {
        len @ 0..=0xff => head(out, 0xc4, (len as u8).to_be_bytes()),
        len @ 0x100..=0xffff => head(out, 0xc5, (len as u16).to_be_bytes()),
        len => head(out, 0xc6, long(len)?),
    }
    out.extend_from_slice(bytes);
    Ok(())
}

#[inline]
pub fn write_array(out: &mut Vec<u8>, len: usize) -> Result<(), TooLong> {
    match len {
        0..=15 => out.push(0x90 | len as u8),
        16..=0xffff => head(out, 0xdc, (len as u16).to_be_bytes()),
        _ => head(out, 0xdd, long(len)?),
    }
    Ok(())
}

#[inline]
pub fn write_map(out: &mut Vec<u8>, len: usize) -> Result<(), TooLong> {
    match len {
        0..=15 => out.push(0x80 | len as u8),
        16..=0xffff => head(out, 0xde, (len as u16).to_be_bytes()),
        _ => head(out, 0xdf, long(len)?),
    }
    Ok(())
}

/// An extension whose body is known.
pub fn write_ext(out: &mut Vec<u8>, code: i8, body: &[u8]) -> Result<(), TooLong> {
    match body.len() {
        1 => out.push(0xd4),
        2 => out.push(0xd5),
        4 => out.push(0xd6),
        8 => out.push(0xd7),
        16 => out.push(0xd8),
        len @ 0..=0xff => head(out, 0xc7, (len as u8).to_be_bytes()),
        len @ 0x100..=0xffff => head(out, 0xc8, (len as u16).to_be_bytes()),
        len => head(out, 0xc9, long(len)?),
    }
    out.push(code as u8);
    out.extend_from_slice(body);
    Ok(())
}

/// Where an extension's body starts whose length is not known yet.
#[derive(Debug)]
#[must_use = "the extension has no length until end_ext"]
pub struct OpenExt(usize);

/// Starts an extension; what is written until `end_ext` is its body.
#[inline]
pub fn begin_ext(out: &mut Vec<u8>, code: i8) -> OpenExt {
    out.extend_from_slice(&[0xc9, 0, 0, 0, 0, code as u8]);
    OpenExt(out.len())
}

#[inline]
pub fn end_ext(out: &mut [u8], OpenExt(start): OpenExt) -> Result<(), TooLong> {
    let len = long(out.len() - start)?;
    out[start - 5..start - 1].copy_from_slice(&len);
    Ok(())
}

fn long(len: usize) -> Result<[u8; 4], TooLong> {
    u32::try_from(len)
        .map(u32::to_be_bytes)
        .map_err(|_| TooLong(len))
}

#[inline]
fn head<const N: usize>(out: &mut Vec<u8>, marker: u8, value: [u8; N]) {
    out.push(marker);
    out.extend_from_slice(&value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Vec<Token<'_>> {
        let mut reader = Reader::new(bytes);
        let mut tokens = Vec::new();
        while reader.owed > 0 {
            tokens.push(reader.next_token().unwrap());
        }
        reader.finish().unwrap();
        tokens
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn ints_take_the_shortest_form_and_come_back() {
        for (value, len) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (256, 3),
            (65_536, 5),
            (1 << 32, 9),
            (i64::MAX, 9),
            (-1, 1),
            (-32, 1),
            (-33, 2),
            (-129, 3),
            (-40_000, 5),
            (i64::MIN, 9),
        ] {
            let bytes = written(|out| write_int(out, value));
            assert_eq!(bytes.len(), len, "{value}");
            assert_eq!(read(&bytes), [Token::Int(value)]);
        }
        let bytes = written(|out| write_uint(out, u64::MAX));
        assert_eq!(read(&bytes), [Token::Uint(u64::MAX)]);
    }

    #[test]
    fn lengths_take_every_form() {
        for len in [
            0, 1, 2, 4, 8, 15, 16, 17, 31, 32, 255, 256, 65_535, 65_536, 70_000,
        ] {
            let body = vec![b'x'; len];
            let bytes = written(|out| write_str(out, &body).unwrap());
            assert_eq!(read(&bytes), [Token::Str(&body)]);
            let bytes = written(|out| write_bin(out, &body).unwrap());
            assert_eq!(read(&bytes), [Token::Bin(&body)]);
            let bytes = written(|out| write_ext(out, 7, &body).unwrap());
            assert_eq!(read(&bytes), [Token::Ext(7, &body)]);
            let array = written(|out| {
                write_array(out, len).unwrap();
                out.resize(out.len() + len, 0xc0);
            });
            assert_eq!(read(&array)[0], Token::Array(len));
            let map = written(|out| {
                write_map(out, len).unwrap();
                out.resize(out.len() + 2 * len, 0xc3);
            });
            assert_eq!(read(&map)[0], Token::Map(len));
            assert_eq!(read(&map).len(), 1 + 2 * len);
        }
    }

    #[test]
    fn an_open_extension_gets_its_length() {
        let bytes = written(|out| {
            let ext = begin_ext(out, -3);
            write_float(out, 0.5);
            write_bool(out, true);
            end_ext(out, ext).unwrap();
        });
        let [Token::Ext(-3, body)] = read(&bytes)[..] else {
            panic!("an extension")
        };
        let mut reader = Reader::new(body);
        assert_eq!(reader.next_token(), Ok(Token::Float(0.5)));
        assert_eq!(reader.finish(), Err(Malformed::Trailing(1)));
    }

    #[test]
    fn promises_beyond_the_bytes_are_refused() {
        // Each container alone could be there; together they promise more than there is.
        let mut nested = Vec::new();
        for _ in 0..3 {
            nested.extend_from_slice(&[0xdc, 0, 8]);
        }
        nested.resize(3 + 3 + 3 + 10, 0xc0);
        let mut reader = Reader::new(&nested);
        assert_eq!(reader.next_token(), Ok(Token::Array(8)));
        assert_eq!(reader.next_token(), Err(Malformed::Truncated));
        // The same through an extension: its body takes what the array around it needs.
        let mut hidden = vec![0x98, 0xc7, 10, 1];
        hidden.resize(4 + 10 + 6, 0xc0);
        let mut reader = Reader::new(&hidden);
        assert_eq!(reader.next_token(), Ok(Token::Array(8)));
        assert_eq!(reader.next_token(), Err(Malformed::Truncated));

        for huge in [
            [0xdd, 0xff, 0xff, 0xff, 0xff],
            [0xdf, 0xff, 0xff, 0xff, 0xff],
            [0xc6, 0xff, 0xff, 0xff, 0xff],
            [0xc9, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(
                Reader::new(&huge).next_token(),
                Err(Malformed::Truncated),
                "{huge:?}"
            );
        }
        assert_eq!(Reader::new(&[0xc1]).next_token(), Err(Malformed::Reserved));
        assert_eq!(Reader::new(&[]).next_token(), Err(Malformed::Truncated));
        assert_eq!(Reader::new(&[1]).finish(), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn noise_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes);
            let mut tokens = 0;
            while reader.owed > 0 && let Ok(token) = reader.next_token() {
                tokens += 1;
                if matches!(token, Token::Array(_) | Token::Map(_)) {
                    prop_assert!(reader.owed <= reader.rest.len());
                }
            }
            prop_assert!(tokens <= bytes.len());
        }

        #[test]
        fn floats_and_ints_come_back(float in any::<f64>(), int in any::<i64>()) {
            let bytes = written(|out| write_float(out, float));
            let [Token::Float(back)] = read(&bytes)[..] else { panic!("a float") };
            prop_assert_eq!(back.to_bits(), float.to_bits());
            let bytes = written(|out| write_int(out, int));
            prop_assert_eq!(read(&bytes), vec![Token::Int(int)]);
        }
    }
}
