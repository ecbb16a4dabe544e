//! The reader's right to a payload, viewed through the buffer protocol.

use std::ffi::c_int;
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use sglang_omni_relay::{Access, Lease, OpenError, open, try_open};

use super::{LeaseError, PlaceRow, ShmMapping, place};
use crate::buffer::BufferView;

fn unreadable(error: OpenError) -> PyErr {
    LeaseError::new_err(error.to_string())
}

fn access(shared: bool) -> Access {
    if shared {
        Access::CopyOnWrite
    } else {
        Access::Sole
    }
}

/// Holds a payload as long as anything views it through the buffer protocol.
#[pyclass(frozen, name = "ShmLease", module = "sglang_omni._core")]
pub struct ShmLease {
    /// `None` only while this is dropped.
    lease: Option<Lease>,
    /// Called with the lease when the last view is gone.
    heir: OnceLock<Py<PyAny>>,
}

impl ShmLease {
    fn of(lease: Lease) -> Self {
        Self {
            lease: Some(lease),
            heir: OnceLock::new(),
        }
    }

    fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("only drop takes it")
    }
}

impl Drop for ShmLease {
    fn drop(&mut self) {
        let (Some(heir), Some(lease)) = (self.heir.take(), self.lease.take()) else {
            return;
        };
        // If there is no interpreter any more, or the heir fails, the payload is returned here.
        let _ = Python::try_attach(|py| {
            // Views may be freed while an exception is on its way.
            let raised = PyErr::take(py);
            let left = Bound::new(py, Self::of(lease)).and_then(|left| heir.call1(py, (left,)));
            if let Err(error) = left {
                error.write_unraisable(py, None);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

#[pymethods]
impl ShmLease {
    #[new]
    #[pyo3(signature = (name, place_row, *, shared = false))]
    fn new(py: Python<'_>, name: &str, place_row: PlaceRow, shared: bool) -> PyResult<Self> {
        let lease = py.detach(|| open(name, &place(place_row), access(shared)));
        lease.map(Self::of).map_err(unreadable)
    }

    /// Opens a lease without waiting. None if the sender must be asked for memory first.
    #[staticmethod]
    #[pyo3(signature = (name, place_row, *, shared = false))]
    fn try_open(name: &str, place_row: PlaceRow, shared: bool) -> PyResult<Option<Self>> {
        let lease = try_open(name, &place(place_row), access(shared)).map_err(unreadable)?;
        Ok(lease.map(Self::of))
    }

    /// Has `heir` called once, with another lease on the payload, when the last view of this one is gone.
    fn bequeath(&self, heir: Py<PyAny>) {
        let _ = self.heir.set(heir);
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.lease().len()
    }

    #[getter]
    fn address(&self) -> usize {
        self.lease().as_ptr() as usize
    }

    /// The sender's arena; None for a payload in a segment or a private mapping.
    #[getter]
    fn arena(&self) -> Option<ShmMapping> {
        let mapping = self.lease().arena()?;
        Some(ShmMapping { mapping })
    }

    /// Copies the payload to the beginning of a buffer.
    fn copy_to(&self, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let lease = self.lease();
        let view = BufferView::writable(target, lease.len())?;
        // SAFETY: the buffer is that long and held. It may be a view of this lease, so that source and target overlap.
        target
            .py()
            .detach(|| unsafe { std::ptr::copy(lease.as_ptr(), view.as_ptr(), lease.len()) });
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter with a valid `view`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let lease = slf.get().lease();
        // SAFETY: the payload stays mapped until the lease is dropped, and the view holds a reference to the lease.
        // The buffer is writable, because torch warns of read-only ones.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                lease.as_ptr().cast(),
                lease.len() as isize,
                0,
                flags,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}
