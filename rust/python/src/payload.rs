//! The plan of a payload: where its header, skeleton and tensors go, and the objects that own the tensors.

#[cfg(test)]
mod tests;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sglang_omni_payload::{DTYPES, Plan};

use crate::buffer::BufferView;

#[pyclass(frozen, module = "sglang_omni._core")]
pub struct PayloadPlan {
    pub plan: Plan,
    /// The owners of the memory that the plan points to, kept as long as the plan may be written.
    owners: Vec<Py<PyAny>>,
}

impl PayloadPlan {
    /// `owners` own the memory of the plan's sources.
    pub fn new(plan: Plan, owners: Vec<Py<PyAny>>) -> Self {
        Self { plan, owners }
    }

    /// Copies tensors of a GPU's memory to their places in the payload that was written to `target`.
    pub fn fill(&self, py: Python<'_>, target: usize) -> PyResult<()> {
        let place = |(address, len, offset)| (address, len, target + offset as usize);
        let runs: Vec<(usize, usize, usize)> = self.plan.foreign().map(place).collect();
        if runs.is_empty() {
            return Ok(());
        }
        let owners: Vec<_> = self.owners.iter().map(|owner| owner.bind(py)).collect();
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
            // SAFETY: `target` is exactly that long and new, and the sources' owners are kept.
            unsafe { self.plan.write_to(target.as_mut_ptr()) };
            self.fill(py, target.as_mut_ptr() as usize)
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
            return Err(PyValueError::new_err(
                "the buffer has some of the tensors' own memory: they would be written over",
            ));
        }
        let start = start as usize;
        // SAFETY: the buffer is that long and held, it has nothing of the sources, and their owners are kept.
        py.detach(|| unsafe { self.plan.write_to(start as *mut u8) });
        self.fill(py, start)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PayloadPlan>()?;
    let names: Vec<&str> = DTYPES.iter().map(|dtype| dtype.name).collect();
    module.add("PAYLOAD_DTYPES", names)?;
    Ok(())
}
