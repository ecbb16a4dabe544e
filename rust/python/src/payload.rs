//! The plan of a payload: where its header, skeleton and tensors go, and the objects that own the tensors.

#[cfg(test)]
mod tests;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sglang_omni_payload::{DTYPES, Plan, Source};

use crate::buffer::BufferView;
use crate::codec::{Owner, check, read_sources};

#[pyclass(frozen, module = "sglang_omni._core")]
pub struct PayloadPlan {
    pub plan: Plan,
    /// By row of the plan's table. Both are kept as long as the plan may be written.
    sources: Vec<Source>,
    owners: Vec<Owner>,
}

impl PayloadPlan {
    /// `owners` own the memory of the plan's sources.
    pub fn new(plan: Plan, sources: Vec<Source>, owners: Vec<Owner>) -> Self {
        Self {
            plan,
            sources,
            owners,
        }
    }

    /// Copies the payload to `target`. Raises a RuntimeError if the memory of a tensor was freed since it was planned, or
    /// while it was copied; then `target` holds no payload.
    ///
    /// # Safety
    /// `target` is valid for writing `plan.len()` bytes, no other thread uses it, and it has nothing of the sources.
    pub unsafe fn write(&self, py: Python<'_>, target: usize) -> PyResult<()> {
        let rows = self.owners.iter().zip(&self.sources);
        // SAFETY: the caller's promise, and the sources' memory is there while this runs.
        let copy = || unsafe { self.plan.write_to(target as *mut u8) };
        read_sources(py, rows.clone(), self.plan.len(), copy)?;
        if self.on_device() {
            self.fill(py, target)?;
            check(py, rows)?;
        }
        Ok(())
    }

    /// Copies tensors of a GPU's memory to their places in the payload.
    fn fill(&self, py: Python<'_>, target: usize) -> PyResult<()> {
        let place = |(address, len, offset)| (address, len, target + offset as usize);
        let runs: Vec<(usize, usize, usize)> = self.plan.foreign().map(place).collect();
        let owners: Vec<_> = self.owners.iter().map(Owner::object).collect();
        py.import("sglang_omni.relay.shm.device_copy")?
            .call_method1("copy_from_device", (owners, runs))?;
        Ok(())
    }
}

#[pymethods]
impl PayloadPlan {
    #[getter]
    fn nbytes(&self) -> u64 {
        self.plan.len()
    }

    #[getter]
    fn tensors(&self) -> usize {
        self.owners.len()
    }

    #[getter]
    fn on_device(&self) -> bool {
        self.plan.foreign().next().is_some()
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.plan.len() as usize, |target| {
            // SAFETY: `target` is exactly that long and new.
            unsafe { self.write(py, target.as_mut_ptr() as usize) }
        })
    }

    /// Writes to the first `nbytes` bytes of a buffer. Raises a ValueError if it has fewer, or part of the tensors'
    /// memory.
    fn write_to(&self, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = target.py();
        let len = self.plan.len() as usize;
        let view = BufferView::writable(target, len)?;
        let start = view.as_ptr();
        if self.plan.reads(start as usize..start as usize + len) {
            // Memory that a tensor has lost may be this buffer's by now.
            check(py, self.owners.iter().zip(&self.sources))?;
            return Err(PyValueError::new_err(
                "the buffer has some of the tensors' own memory: they would be written over",
            ));
        }
        // SAFETY: the buffer is that long and held, and it has nothing of the sources.
        unsafe { self.write(py, start as usize) }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PayloadPlan>()?;
    let names: Vec<&str> = DTYPES.iter().map(|dtype| dtype.name).collect();
    module.add("PAYLOAD_DTYPES", names)?;
    Ok(())
}
