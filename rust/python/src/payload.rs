//! A payload on its way out: where its header, skeleton and tensors go.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sglang_omni_payload::{DTYPES, Plan};

#[pyclass(frozen, module = "sglang_omni._core")]
pub struct PayloadPlan {
    pub plan: Plan,
    /// The tensors whose memory the plan points to, kept for as long as anyone may write it.
    owners: Vec<Py<PyAny>>,
}

impl PayloadPlan {
    /// `owners` own the memory of the plan's sources.
    pub fn new(plan: Plan, owners: Vec<Py<PyAny>>) -> Self {
        Self { plan, owners }
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

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.plan.len() as usize, |target| {
            // SAFETY: `target` is exactly that long and new, and the sources' owners are kept.
            unsafe { self.plan.write_to(target.as_mut_ptr()) };
            Ok(())
        })
    }

    /// Writes to `nbytes` bytes of memory at an address.
    fn write_to(&self, py: Python<'_>, address: usize) {
        // SAFETY: the Python side owns that memory, and the sources' owners are kept.
        py.detach(|| unsafe { self.plan.write_to(address as *mut u8) });
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PayloadPlan>()?;
    let names: Vec<&str> = DTYPES.iter().map(|dtype| dtype.name).collect();
    module.add("PAYLOAD_DTYPES", names)?;
    Ok(())
}
