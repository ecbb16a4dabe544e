//! Credits and ranges of memory for relays over a transfer engine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sglang_omni_relay::{Extent, Extents, Ledger};

/// The credits of edges, which do not share.
#[pyclass(frozen, module = "sglang_omni._core")]
pub struct CreditLedger {
    ledger: Ledger,
}

#[pymethods]
impl CreditLedger {
    #[new]
    fn new(limit: u64) -> Self {
        Self {
            ledger: Ledger::new(limit),
        }
    }

    #[getter]
    fn limit(&self) -> u64 {
        self.ledger.limit()
    }

    #[pyo3(signature = (edge, amount = 1))]
    fn take(&self, edge: &str, amount: u64) -> bool {
        self.ledger.edge(edge).take(amount).is_some()
    }

    #[pyo3(signature = (edge, amount = 1))]
    fn give_back(&self, edge: &str, amount: u64) -> PyResult<()> {
        let credit = self.ledger.edge(edge);
        if credit.give_back(amount) {
            return Ok(());
        }
        let held = credit.held();
        Err(PyValueError::new_err(format!(
            "edge {edge:?} holds {held}: {amount} were not taken and cannot be given back"
        )))
    }

    fn note_wait(&self, edge: &str) {
        self.ledger.edge(edge).note_wait();
    }

    fn held(&self, edge: &str) -> u64 {
        self.ledger.edge(edge).held()
    }

    fn snapshot(&self) -> Vec<(String, u64, u64)> {
        self.ledger.snapshot()
    }
}

/// Ranges of memory that a transfer engine has registered.
#[pyclass(frozen, name = "Extents", module = "sglang_omni._core")]
pub struct PyExtents {
    extents: Mutex<Extents>,
}

impl PyExtents {
    fn lock(&self) -> MutexGuard<'_, Extents> {
        // Every change under the lock is complete before anything can panic.
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyExtents {
    #[new]
    fn new(capacity: u64) -> Self {
        Self {
            extents: Mutex::new(Extents::new(capacity)),
        }
    }

    fn allocate(&self, nbytes: u64) -> Option<(u64, u64)> {
        let Extent { start, len } = self.lock().allocate(nbytes)?;
        Some((start, len))
    }

    fn release(&self, start: u64, nbytes: u64) {
        self.lock().release(Extent { start, len: nbytes });
    }
}
