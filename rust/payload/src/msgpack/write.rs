//! Appends msgpack values to a buffer, each in its shortest form.

use std::fmt;

/// A value has more bytes or elements than msgpack's 32 bits can count.
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

/// Writes an extension whose body is known.
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

/// An extension whose length is not known yet: the start of its body.
#[derive(Debug)]
#[must_use = "the extension has no length until end_ext"]
pub struct OpenExt(usize);

/// Starts an extension. Everything written until `end_ext` is its body.
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
