//! Access to the memory of Python objects through the buffer protocol.

#[cfg(test)]
mod tests;

use std::ffi::c_int;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The contiguous bytes of a Python object, which are held until this is dropped, in any thread.
pub struct BufferView(ffi::Py_buffer);

// SAFETY: only read after `get`, and released with the interpreter's lock.
unsafe impl Send for BufferView {}
// SAFETY: as above.
unsafe impl Sync for BufferView {}

impl BufferView {
    /// An object's bytes, for reading. Raises what the object raises if it has no contiguous bytes.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_SIMPLE)
    }

    /// An object's bytes, for writing. Raises a ValueError if they are fewer than `len`.
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

    /// The first byte; the bytes stay as long as this does. Never null, although there may be no bytes.
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
    /// The bytes are not written to while the slice is used.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the exporter keeps this memory until the release; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        // `Python::attach` must not be used: torch releases the lock before it frees memory, and inside a call of
        // pyo3's, for example one that drops a plan, pyo3 still takes the thread for attached. SAFETY: the buffer was
        // acquired in `get` and is released once, with the lock. If the interpreter has ended, there is no object left
        // to release.
        unsafe {
            if ffi::Py_IsInitialized() != 0 {
                let state = ffi::PyGILState_Ensure();
                ffi::PyBuffer_Release(&raw mut self.0);
                ffi::PyGILState_Release(state);
            }
        }
    }
}
