//! Reads one msgpack value token by token.

use std::fmt;

/// Why bytes are not one msgpack value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A value, or an element that a container promised, is missing.
    Truncated,
    /// So many bytes follow the value.
    Trailing(usize),
    /// 0xc1, the one byte that no value starts with.
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
    /// Number of pairs: twice as many tokens follow.
    Map(usize),
    Ext(i8, &'a [u8]),
}

/// Reads one value.
///
/// A container is refused unless there is a byte for every element that it and the containers around it still owe. A
/// caller that allocates for the promised elements thus allocates for no more elements than there are bytes, however
/// deeply hostile containers nest.
#[derive(Debug)]
pub struct TokenReader<'a> {
    pub(super) rest: &'a [u8],
    /// Values still to come.
    pub(super) owed: usize,
}

impl<'a> TokenReader<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Self {
            rest: message,
            owed: 1,
        }
    }

    /// Ok if exactly one value has been read.
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
        // The body may be a message of its own; its promises count against its own bytes only.
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
