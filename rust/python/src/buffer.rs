//! Memory of Python objects, by the buffer protocol.

#[cfg(test)]
mod tests;

use std::ffi::c_int;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

/// A buffer of contiguous bytes, held; let go of in whatever thread drops the last view of it.
pub struct BufferView(ffi::Py_buffer);

// SAFETY: only read after `get`, and released with the interpreter attached.
unsafe impl Send for BufferView {}
// SAFETY: as above.
unsafe impl Sync for BufferView {}

impl BufferView {
    /// To be read.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_SIMPLE)
    }

    /// To be written, at least `len` bytes.
    pub fn writable(object: &Bound<'_, PyAny>, len: usize) -> PyResult<Self> {
        let view = Self::get(object, ffi::PyBUF_WRITABLE)?;
        if view.len() < len {
            let text = format!("{len} bytes do not fit a buffer of {}", view.len());
            return Err(PyValueError::new_err(text));
        }
        Ok(view)
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = ffi::Py_buffer::new();
        // SAFETY: filled in on success, released by `drop`.
        let result = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut view, flags) };
        if result == 0 {
            Ok(Self(view))
        } else {
            Err(PyErr::fetch(object.py()))
        }
    }

    /// The first of `len` bytes, which stay as long as this does. Never null, though there may be none.
    pub fn as_ptr(&self) -> *mut u8 {
        if self.0.len == 0 {
            return std::ptr::dangling_mut();
        }
        self.0.buf.cast()
    }

    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// # Safety
    /// They are not written to while the slice is used.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the exporter keeps this memory until the release; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        // Not by pyo3: torch lets go of the GIL before it frees memory, and where a call of pyo3's led there,
        // as when a plan is dropped that owns the tensor, pyo3 takes the thread for attached all the same.
        // SAFETY: the buffer was got in `get` and is released once, with the GIL. An interpreter that is gone
        // has no interpreter left to give the memory back to.
        unsafe {
            if ffi::Py_IsInitialized() != 0 {
                let state = ffi::PyGILState_Ensure();
                ffi::PyBuffer_Release(&raw mut self.0);
                ffi::PyGILState_Release(state);
            }
        }
    }
}
