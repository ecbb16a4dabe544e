//! The shared-memory arena and leases on its payloads.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{create_exception, ffi};
use sglang_omni_relay::{AllocateError, Arena, Grant, Lease, Place, TicketState, open};

use crate::payload::PayloadPlan;

create_exception!(
    sglang_omni._core,
    ArenaFull,
    PyRuntimeError,
    "An edge has no credit for a payload now."
);
create_exception!(
    sglang_omni._core,
    LeaseError,
    PyRuntimeError,
    "A payload cannot be read (any more)."
);

/// `(segment, offset, length, ticket, generation)`: where a payload lies.
type PlaceRow = (u64, u64, u64, u32, u32);

fn place((segment, offset, len, ticket, generation): PlaceRow) -> Place {
    Place {
        segment,
        offset,
        len,
        ticket,
        generation,
    }
}

#[pyclass(frozen, name = "ShmArena", module = "sglang_omni._core")]
struct ShmArena {
    arena: Arena,
}

impl ShmArena {
    fn grant(&self, edge: &str, key: &str, len: u64, keep: f64) -> PyResult<Grant> {
        let keep = Duration::try_from_secs_f64(keep)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.arena
            .allocate(edge, key, len, keep)
            .map_err(|error| match error {
                AllocateError::Full(full) => ArenaFull::new_err(full.to_string()),
                AllocateError::Io(error) => PyOSError::new_err(error.to_string()),
            })
    }
}

fn row(grant: &Grant) -> PlaceRow {
    let Place {
        segment,
        offset,
        len,
        ticket,
        generation,
    } = grant.place;
    (segment, offset, len, ticket, generation)
}

#[pymethods]
impl ShmArena {
    #[new]
    fn new(limit: u64) -> PyResult<Self> {
        Ok(Self {
            arena: Arena::new(limit)?,
        })
    }

    #[getter]
    fn name(&self) -> &str {
        self.arena.name()
    }

    #[getter]
    fn event_fd(&self) -> i32 {
        self.arena.event().as_raw_fd()
    }

    /// Packs a payload into an extent: the one copy it takes.
    fn put(
        &self,
        py: Python<'_>,
        edge: &str,
        key: &str,
        plan: &PayloadPlan,
        keep: f64,
    ) -> PyResult<PlaceRow> {
        let grant = self.grant(edge, key, plan.plan.len(), keep)?;
        // SAFETY: the extent is ours alone and long enough; the Python side keeps the sources alive.
        py.detach(|| unsafe { plan.plan.write_to(grant.ready()) });
        Ok(row(&grant))
    }

    /// Copies plain memory into an extent.
    fn put_raw(
        &self,
        py: Python<'_>,
        edge: &str,
        key: &str,
        address: usize,
        nbytes: usize,
        keep: f64,
    ) -> PyResult<PlaceRow> {
        let grant = self.grant(edge, key, nbytes as u64, keep)?;
        // SAFETY: the extent is ours alone and long enough; the Python side owns the source.
        py.detach(|| unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, grant.ready(), nbytes)
        });
        Ok(row(&grant))
    }

    /// "ready", "held", "returned", or "free" once its room is given to others or taken back.
    fn state(&self, place_row: PlaceRow) -> &'static str {
        match self.arena.state(&place(place_row)) {
            TicketState::Free => "free",
            TicketState::Ready => "ready",
            TicketState::Held => "held",
            TicketState::Returned => "returned",
        }
    }

    fn revoke(&self, key: &str) -> usize {
        self.arena.revoke(key)
    }

    fn wait_begin(&self, pressure: bool) {
        self.arena.wait_begin(pressure);
    }

    fn wait_end(&self, pressure: bool) {
        self.arena.wait_end(pressure);
    }

    fn edges(&self) -> Vec<(String, u64, u64)> {
        self.arena.edges()
    }

    fn outstanding(&self) -> usize {
        self.arena.outstanding()
    }

    fn is_crowded(&self, edge: &str) -> bool {
        self.arena.is_crowded(edge)
    }
}

/// Holds an extent for as long as anything views it through the buffer protocol.
#[pyclass(frozen, name = "ShmLease", module = "sglang_omni._core")]
struct ShmLease {
    lease: Lease,
}

#[pymethods]
impl ShmLease {
    #[new]
    fn new(py: Python<'_>, name: &str, place_row: PlaceRow) -> PyResult<Self> {
        let lease = py.detach(|| open(name, &place(place_row)));
        Ok(Self {
            lease: lease.map_err(|error| LeaseError::new_err(error.to_string()))?,
        })
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.lease.len()
    }

    #[getter]
    fn should_copy(&self) -> bool {
        self.lease.should_copy()
    }

    /// Copies the payload to memory of the caller's.
    fn copy_to(&self, py: Python<'_>, address: usize) {
        // SAFETY: the Python side owns `nbytes` bytes at that address.
        py.detach(|| unsafe {
            std::ptr::copy_nonoverlapping(self.lease.as_ptr(), address as *mut u8, self.lease.len())
        });
    }

    /// # Safety
    /// Called by the interpreter with a valid `view`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let lease = &slf.get().lease;
        // SAFETY: the memory stays mapped and this payload's until the lease is dropped, and the view
        // holds a reference to its owner. torch refuses no read-only buffers but warns, so it is writable.
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ShmArena>()?;
    module.add_class::<ShmLease>()?;
    module.add("ArenaFull", module.py().get_type::<ArenaFull>())?;
    module.add("LeaseError", module.py().get_type::<LeaseError>())?;
    Ok(())
}
