//! Reads a payload. Every offset is checked to lie inside the bytes before anything is allocated or pointed to.

use std::fmt;
use std::ops::Range;

use crate::extent;
use crate::{
    ALIGN, BUFFER_ROW_LEN, DType, Framework, HEADER_LEN, MAGIC, MAX_DIMS, TENSOR_ROW_LEN, VERSION,
};

/// One tensor of a payload, checked to lie inside its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    pub framework: Framework,
    pub dtype: DType,
    /// First element, in bytes from the start of the payload.
    pub offset: usize,
    pub shape: Vec<u64>,
    /// In bytes.
    pub strides: Vec<i64>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Where the skeleton is in the payload.
    pub skeleton: Range<usize>,
    pub tensors: Vec<TensorView>,
}

/// Why a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    Truncated,
    BadMagic,
    UnknownVersion(u16),
    UnknownFlags(u16),
    BadLength,
    UnknownFramework(u8),
    UnknownDType(u8),
    TooManyDims(u16),
    BadBuffer(u32),
    OutOfBounds(u32),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "payload is cut off"),
            Self::BadMagic => write!(f, "not a packed payload"),
            Self::UnknownVersion(v) => write!(
                f,
                "payload version {v} is unknown, this is version {VERSION}"
            ),
            Self::UnknownFlags(v) => write!(f, "payload has unknown flags {v:#x}"),
            Self::BadLength => write!(f, "payload's length does not match its header"),
            Self::UnknownFramework(v) => write!(f, "payload has a tensor of unknown framework {v}"),
            Self::UnknownDType(v) => write!(f, "payload has a tensor of unknown dtype {v}"),
            Self::TooManyDims(v) => write!(
                f,
                "payload has a tensor of {v} dimensions, at most {MAX_DIMS}"
            ),
            Self::BadBuffer(v) => write!(
                f,
                "payload's buffer {v} is misaligned, overlaps or lies outside"
            ),
            Self::OutOfBounds(v) => write!(f, "payload's tensor {v} lies outside its buffer"),
        }
    }
}

impl std::error::Error for DecodeError {}

struct HeadReader<'a> {
    rest: &'a [u8],
}

impl<'a> HeadReader<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        let (head, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(*self.take()?))
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(*self.take()?))
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(*self.take()?))
    }

    fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(*self.take()?))
    }
}

/// Copies the part of a payload before its tensors, for [`decode_head`]. Another process may write to the payload
/// meanwhile; the bytes that were checked must be the bytes that are used.
///
/// # Safety
/// `len` bytes are readable at `payload`.
pub unsafe fn copy_head(payload: *const u8, len: usize) -> Vec<u8> {
    // The length is a guess from bytes that may change. It only decides how much is copied.
    // SAFETY: the caller's promise, for offsets below `len`.
    let byte = |at: usize| unsafe { payload.add(at).read_volatile() };
    let number = |at: usize, bytes: usize| -> usize {
        let bytes = (at..at + bytes).rev();
        bytes.fold(0u64, |number, at| number << 8 | u64::from(byte(at))) as usize
    };
    let mut end = HEADER_LEN;
    if len >= HEADER_LEN {
        let (tensors, buffers, skeleton) = (number(8, 4), number(12, 4), number(16, 8));
        for _ in 0..tensors {
            if end.saturating_add(TENSOR_ROW_LEN) > len {
                break;
            }
            end += TENSOR_ROW_LEN + 16 * number(end + 2, 2);
        }
        end = end
            .saturating_add(buffers.saturating_mul(BUFFER_ROW_LEN))
            .saturating_add(skeleton);
    }
    let mut head = vec![0; end.min(len)];
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(payload, head.as_mut_ptr(), head.len()) };
    head
}

/// Reads and checks a payload. Every input gives a result or an error, and no allocation is larger than a small
/// multiple of the input.
pub fn decode(payload: &[u8]) -> Result<Decoded, DecodeError> {
    decode_head(payload, payload.len())
}

/// Reads and checks the head of a payload of `len` bytes, of which `payload` is the beginning.
pub fn decode_head(payload: &[u8], len: usize) -> Result<Decoded, DecodeError> {
    let mut reader = HeadReader { rest: payload };
    if reader.take::<4>()? != &MAGIC {
        return Err(DecodeError::BadMagic);
    }
    let version = reader.u16()?;
    if version != VERSION {
        return Err(DecodeError::UnknownVersion(version));
    }
    let flags = reader.u16()?;
    if flags != 0 {
        return Err(DecodeError::UnknownFlags(flags));
    }
    let (tensor_count, buffer_count) = (reader.u32()? as usize, reader.u32()? as usize);
    let (skeleton_len, total) = (reader.u64()?, reader.u64()?);
    debug_assert_eq!(payload.len() - reader.rest.len(), HEADER_LEN);
    if total != len as u64 {
        return Err(DecodeError::BadLength);
    }
    // Counts are believed only if there are bytes for their rows.
    let least = tensor_count
        .checked_mul(TENSOR_ROW_LEN)
        .zip(buffer_count.checked_mul(BUFFER_ROW_LEN))
        .and_then(|(a, b)| a.checked_add(b))
        .ok_or(DecodeError::Truncated)?;
    if least > reader.rest.len() {
        return Err(DecodeError::Truncated);
    }

    let mut rows = Vec::with_capacity(tensor_count);
    for _ in 0..tensor_count {
        rows.push(tensor_row(&mut reader)?);
    }
    let mut buffers = Vec::with_capacity(buffer_count);
    for _ in 0..buffer_count {
        buffers.push((reader.u64()?, reader.u64()?));
    }
    let skeleton_start = payload.len() - reader.rest.len();
    let skeleton_end = usize::try_from(skeleton_len)
        .ok()
        .and_then(|len| skeleton_start.checked_add(len))
        .filter(|&end| end <= payload.len())
        .ok_or(DecodeError::Truncated)?;

    let mut end = skeleton_end as u64;
    for (index, &(offset, len)) in buffers.iter().enumerate() {
        let next = offset.checked_add(len).filter(|&next| next <= total);
        match next {
            Some(next) if offset >= end && offset % ALIGN == 0 => end = next,
            _ => return Err(DecodeError::BadBuffer(index as u32)),
        }
    }
    if end != total {
        return Err(DecodeError::BadLength);
    }

    let mut tensors = Vec::with_capacity(rows.len());
    for (index, row) in rows.into_iter().enumerate() {
        tensors.push(
            row.place(&buffers)
                .ok_or(DecodeError::OutOfBounds(index as u32))?,
        );
    }
    Ok(Decoded {
        skeleton: skeleton_start..skeleton_end,
        tensors,
    })
}

struct Row {
    framework: Framework,
    dtype: DType,
    buffer: u32,
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<i64>,
}

fn tensor_row(reader: &mut HeadReader<'_>) -> Result<Row, DecodeError> {
    let code = reader.u8()?;
    let framework = Framework::from_code(code).ok_or(DecodeError::UnknownFramework(code))?;
    let code = reader.u8()?;
    let dtype = DType::from_code(code).ok_or(DecodeError::UnknownDType(code))?;
    let dims = reader.u16()?;
    if usize::from(dims) > MAX_DIMS {
        return Err(DecodeError::TooManyDims(dims));
    }
    let (buffer, offset) = (reader.u32()?, reader.u64()?);
    let shape = (0..dims).map(|_| reader.u64()).collect::<Result<_, _>>()?;
    let strides = (0..dims).map(|_| reader.i64()).collect::<Result<_, _>>()?;
    Ok(Row {
        framework,
        dtype,
        buffer,
        offset,
        shape,
        strides,
    })
}

impl Row {
    fn place(self, buffers: &[(u64, u64)]) -> Option<TensorView> {
        let (low, high) = extent(self.dtype.itemsize, &self.shape, &self.strides)?;
        let offset = if low == high {
            // No elements, no memory; sizes must still be ones a tensor can have.
            let fits = self.shape.iter().all(|&size| i64::try_from(size).is_ok());
            (self.buffer == u32::MAX && self.offset == 0 && fits).then_some(0)?
        } else {
            let &(start, len) = buffers.get(self.buffer as usize)?;
            let first = i64::try_from(self.offset).ok()?;
            let inside = first.checked_add(low)? >= 0
                && first.checked_add(high)? <= i64::try_from(len).ok()?;
            // torch counts strides in elements; numpy in bytes.
            let item = self.dtype.itemsize as i64;
            let whole = self
                .shape
                .iter()
                .zip(&self.strides)
                .all(|(&size, stride)| size == 1 || stride % item == 0);
            (inside && (whole || self.framework == Framework::Numpy)).then_some(())?;
            usize::try_from(start + self.offset).ok()?
        };
        Some(TensorView {
            framework: self.framework,
            dtype: self.dtype,
            offset,
            shape: self.shape,
            strides: self.strides,
        })
    }
}
