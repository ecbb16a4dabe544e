//! Reads numpy arrays through `__array_struct__`.

#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_void};

use pyo3::prelude::*;
use pyo3::{ffi, intern};
use sglang_omni_payload::{DTYPES, DType};

#[cfg(test)]
pub use tests::FakeArray;

const C_CONTIGUOUS: c_int = 0x1;
const NOT_SWAPPED: c_int = 0x200;

#[repr(C)]
struct Interface {
    two: c_int,
    nd: c_int,
    kind: c_char,
    itemsize: c_int,
    flags: c_int,
    shape: *mut isize,
    strides: *mut isize,
    data: *mut c_void,
    descr: *mut ffi::PyObject,
}

/// An array of one of the format's dtypes, in this machine's byte order.
pub struct Array<'py> {
    pub dtype: DType,
    interface: *const Interface,
    /// Owns `interface`.
    _capsule: Bound<'py, PyAny>,
}

impl<'py> Array<'py> {
    /// `None` for dtypes that the format does not have: structured ones, text, dates, other byte orders.
    pub fn of(array: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let py = array.py();
        let capsule = array.getattr(intern!(py, "__array_struct__"))?;
        // SAFETY: numpy's capsule has no name; any other object gives null and an error.
        let interface = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        if interface.is_null() {
            return Err(PyErr::fetch(py));
        }
        let interface: *const Interface = interface.cast();
        // SAFETY: numpy documents that the capsule points to this struct; the capsule is kept.
        let known = unsafe { &*interface };
        if known.flags & NOT_SWAPPED == 0 {
            return Ok(None);
        }
        Ok(
            format_dtype(known.kind as u8, known.itemsize).map(|dtype| Self {
                dtype,
                interface,
                _capsule: capsule,
            }),
        )
    }

    fn interface(&self) -> &Interface {
        // SAFETY: `of` checked the capsule, which owns it.
        unsafe { &*self.interface }
    }

    pub fn address(&self) -> usize {
        self.interface().data as usize
    }

    pub fn is_contiguous(&self) -> bool {
        self.interface().flags & C_CONTIGUOUS != 0
    }

    pub fn shape(&self) -> impl ExactSizeIterator<Item = u64> {
        let interface = self.interface();
        // SAFETY: numpy gives `nd` sizes.
        unsafe { dims(interface.shape, interface.nd) }
            .iter()
            .map(|&size| size as u64)
    }

    /// In bytes.
    pub fn strides(&self) -> impl ExactSizeIterator<Item = i64> {
        let interface = self.interface();
        // SAFETY: numpy gives `nd` strides.
        unsafe { dims(interface.strides, interface.nd) }
            .iter()
            .map(|&stride| stride as i64)
    }
}

/// # Safety
/// `array` has `nd` numbers for as long as `'a`, or `nd` is 0.
unsafe fn dims<'a>(array: *mut isize, nd: c_int) -> &'a [isize] {
    if nd == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(array, nd as usize) }
}

/// numpy's name for each of the format's dtypes: byte order, kind and size.
const NAMES: [Option<&str>; DTYPES.len()] = [
    Some("|b1"),  // bool
    Some("|u1"),  // uint8
    Some("|i1"),  // int8
    Some("<u2"),  // uint16
    Some("<i2"),  // int16
    Some("<u4"),  // uint32
    Some("<i4"),  // int32
    Some("<u8"),  // uint64
    Some("<i8"),  // int64
    Some("<f2"),  // float16
    None,         // bfloat16
    Some("<f4"),  // float32
    Some("<f8"),  // float64
    None,         // complex32
    Some("<c8"),  // complex64
    Some("<c16"), // complex128
    None,         // the float8s
    None,
    None,
    None,
    None,
    None, // float4_e2m1fn_x2
    None, // bits8
    None, // bits16
];

pub fn name(dtype: DType) -> Option<&'static str> {
    NAMES[usize::from(dtype.code)]
}

pub fn dtype_named(name: &[u8]) -> Option<DType> {
    NAMES
        .iter()
        .position(|known| known.is_some_and(|known| known.as_bytes() == name))
        .map(|code| DTYPES[code])
}

fn format_dtype(kind: u8, itemsize: c_int) -> Option<DType> {
    let itemsize = u64::try_from(itemsize).ok()?;
    NAMES
        .iter()
        .zip(DTYPES)
        .find(|(name, dtype)| {
            name.is_some_and(|name| name.as_bytes()[1] == kind) && dtype.itemsize == itemsize
        })
        .map(|(_, dtype)| dtype)
}
