//! The packed-payload format: encodes, decodes and validates it, without Python and without I/O.
//!
//! Everything is little-endian. A payload is
//!
//! ```text
//! header    magic "SGOP", version u16, flags u16 (0), tensors u32, buffers u32, skeleton u64, total u64
//! tensors   per tensor: framework u8, dtype u8, dims u16, buffer u32, offset u64,
//!           then dims x size u64, then dims x stride i64 (both in the row; strides in bytes)
//! buffers   per buffer: offset u64 (from the start, 64-byte aligned), length u64
//! skeleton  the object the tensors belong to: one msgpack value, opaque here
//! data      the buffers, each 64-byte aligned, in the order of their rows
//! ```
//!
//! The skeleton refers to a tensor by the number of its row. Tensors that share memory share a buffer.

// Unsafe code is only in the modules that say so.
#![deny(unsafe_code)]

#[expect(unsafe_code)]
mod copy;
#[expect(unsafe_code)]
mod decode;
mod dtype;
#[expect(unsafe_code)]
mod encode;
#[expect(unsafe_code)]
mod layout;
#[cfg(test)]
#[expect(unsafe_code)]
mod layout_tests;
pub mod msgpack;
#[cfg(test)]
#[expect(unsafe_code)]
mod tests;

pub use copy::copy;
pub use decode::{DecodeError, Decoded, TensorView, copy_head, decode, decode_head};
pub use dtype::{DTYPES, DType};
pub use encode::{EncodeError, Plan, Source};
pub use layout::{Layout, is_whole, layouts};

/// First bytes of every payload.
pub const MAGIC: [u8; 4] = *b"SGOP";
/// The one version that this crate writes and reads.
pub const VERSION: u16 = 1;
/// Alignment of every buffer in bytes: a cache line, which also suits vector loads.
pub const ALIGN: u64 = 64;
/// More dimensions than torch or numpy allow.
pub const MAX_DIMS: usize = 64;

pub(crate) const HEADER_LEN: usize = 32;
pub(crate) const TENSOR_ROW_LEN: usize = 16;
pub(crate) const BUFFER_ROW_LEN: usize = 16;

/// The kind of object that a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Framework {
    Torch = 0,
    Numpy = 1,
}

impl Framework {
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Torch),
            1 => Some(Self::Numpy),
            _ => None,
        }
    }
}

/// The bytes that a strided view touches, relative to its first element: `(lowest, one past the highest)`.
///
/// `None` if they do not fit an `i64`. A view without elements touches nothing.
pub fn extent(itemsize: u64, shape: &[u64], strides: &[i64]) -> Option<(i64, i64)> {
    if shape.contains(&0) {
        return Some((0, 0));
    }
    let (mut low, mut high) = (0i64, i64::try_from(itemsize).ok()?);
    for (&size, &stride) in shape.iter().zip(strides) {
        let reach = i64::try_from(size - 1).ok()?.checked_mul(stride)?;
        if reach < 0 {
            low = low.checked_add(reach)?;
        } else {
            high = high.checked_add(reach)?;
        }
    }
    Some((low, high))
}
