use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::types::{PyByteArray, PyBytes};

use super::*;
use crate::test_support::attach;

#[test]
fn a_view_is_of_the_objects_own_bytes() {
    attach(|py| {
        let bytes = PyBytes::new(py, b"some bytes");
        let view = BufferView::new(&bytes).unwrap();
        assert_eq!(view.as_ptr().cast_const(), bytes.as_bytes().as_ptr());
        // SAFETY: bytes do not change.
        assert_eq!(unsafe { view.as_slice() }, b"some bytes");
        let empty = BufferView::new(PyBytes::new(py, b"").as_any()).unwrap();
        assert!(!empty.as_ptr().is_null());
        // SAFETY: there are none.
        assert!(unsafe { empty.as_slice() }.is_empty());
    });
}

#[test]
fn what_has_no_contiguous_bytes_to_give_is_refused() {
    attach(|py| {
        let every_other = py
            .eval(c"memoryview(b'some bytes')[::2]", None, None)
            .unwrap();
        let error = BufferView::new(&every_other).err().unwrap();
        assert!(error.is_instance_of::<PyBufferError>(py));
        let error = BufferView::new(py.None().bind(py)).err().unwrap();
        assert!(error.is_instance_of::<PyTypeError>(py));
        let error = BufferView::writable(PyBytes::new(py, b"some").as_any(), 1)
            .err()
            .unwrap();
        assert!(error.is_instance_of::<PyBufferError>(py));
        let short = PyByteArray::new(py, b"1234");
        assert!(BufferView::writable(&short, 4).is_ok());
        let error = BufferView::writable(&short, 5).err().unwrap();
        assert_eq!(
            error.value(py).to_string(),
            "5 bytes do not fit a buffer of 4"
        );
        assert!(PyErr::take(py).is_none());
    });
}

/// An object whose bytes are held cannot change its size.
fn is_held(bytes: &Bound<'_, PyByteArray>) -> bool {
    let len = bytes.len();
    let is_held = bytes.resize(len + 1).is_err();
    bytes.resize(len).unwrap_or(());
    is_held
}

#[test]
fn the_bytes_are_held_until_the_view_is_dropped_with_the_lock_or_without() {
    attach(|py| {
        let bytes = PyByteArray::new(py, b"some bytes");
        let view = BufferView::writable(&bytes, 10).unwrap();
        assert!(is_held(&bytes));
        drop(view);
        assert!(!is_held(&bytes));

        let view = BufferView::new(&bytes).unwrap();
        py.detach(|| drop(view));
        assert!(!is_held(&bytes));

        let view = BufferView::new(&bytes).unwrap();
        py.detach(|| std::thread::spawn(move || drop(view)).join())
            .unwrap();
        assert!(!is_held(&bytes));

        // As torch frees memory: without the lock, of which pyo3 is not told.
        let view = BufferView::new(&bytes).unwrap();
        // SAFETY: this thread has the lock and takes it back.
        unsafe {
            let state = ffi::PyEval_SaveThread();
            drop(view);
            ffi::PyEval_RestoreThread(state);
        }
        assert!(!is_held(&bytes));
    });
}

#[test]
fn a_view_may_be_the_last_to_have_the_object() {
    attach(|py| {
        let view = BufferView::new(PyByteArray::new(py, &[7; 100_000]).as_any()).unwrap();
        // SAFETY: the view alone has the object.
        assert!(unsafe { view.as_slice() }.iter().all(|&byte| byte == 7));
        std::thread::spawn(move || drop(view));
    });
}

/// Bytes that know with what they were released.
#[pyclass(frozen)]
struct Watched;

/// How often they were released, and how often of these without the interpreter's lock.
static RELEASED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

unsafe extern "C" {
    /// Not part of the stable interface, which the crate keeps to elsewhere.
    fn PyGILState_Check() -> c_int;
}

#[pymethods]
impl Watched {
    /// # Safety
    /// Called by the interpreter with a valid `view`.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) {
        let bytes = b"watched".as_ptr().cast_mut().cast();
        // SAFETY: bytes that stay and are not written to.
        unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes, 7, 1, flags) };
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        RELEASED[0].fetch_add(1, SeqCst);
        // SAFETY: asks only.
        if unsafe { PyGILState_Check() } == 0 {
            RELEASED[1].fetch_add(1, SeqCst);
        }
    }
}

#[test]
fn the_bytes_are_released_with_the_lock() {
    attach(|py| {
        let watched = Bound::new(py, Watched).unwrap();
        let view = || BufferView::new(watched.as_any()).unwrap();
        drop(view());
        py.detach({
            let view = view();
            || drop(view)
        });
        let view = view();
        // As torch frees memory that a call of pyo3's let go of.
        // SAFETY: this thread has the lock and takes it back.
        unsafe {
            let state = ffi::PyEval_SaveThread();
            drop(view);
            ffi::PyEval_RestoreThread(state);
        }
        assert_eq!(RELEASED.each_ref().map(|count| count.load(SeqCst)), [3, 0]);
    });
}
