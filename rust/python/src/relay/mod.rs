//! The relay: shared memory, leases on payloads in it, and the credit of edges.

#[expect(unsafe_code)]
mod arena;
mod credits;
#[expect(unsafe_code)]
mod lease;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sglang_omni_relay::{Mapping, Place};

use crate::buffer::BufferView;
use arena::{ShmArena, ShmHeld};
use credits::{CreditLedger, PyExtents};
use lease::ShmLease;

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

/// Where a payload lies: `(segment, offset, length, ticket, generation)`.
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

/// An arena as this process has mapped it; it stays mapped as long as this lives.
#[pyclass(frozen, name = "ShmMapping", module = "sglang_omni._core")]
struct ShmMapping {
    mapping: Arc<Mapping>,
}

#[pymethods]
impl ShmMapping {
    #[getter]
    fn address(&self) -> usize {
        self.mapping.start() as usize
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.mapping.len()
    }

    #[getter]
    fn is_used_elsewhere(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }
}

/// 64 bits that differ if any of a buffer's bytes does.
#[expect(unsafe_code)]
#[pyfunction]
fn checksum(data: &Bound<'_, PyAny>) -> PyResult<u64> {
    let view = BufferView::new(data)?;
    // SAFETY: the caller lets no thread write to it meanwhile; a write would only change the sum.
    let bytes = unsafe { view.as_slice() };
    Ok(data.py().detach(|| sglang_omni_relay::checksum(bytes)))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ShmArena>()?;
    module.add_class::<ShmHeld>()?;
    module.add_class::<ShmLease>()?;
    module.add_class::<ShmMapping>()?;
    module.add_class::<CreditLedger>()?;
    module.add_class::<PyExtents>()?;
    module.add_function(wrap_pyfunction!(checksum, module)?)?;
    module.add("ArenaFull", module.py().get_type::<ArenaFull>())?;
    module.add("LeaseError", module.py().get_type::<LeaseError>())?;
    Ok(())
}
