//! The objects that own the memory of a payload's tensors, and whether that memory is still where it was.
//!
//! A tensor's object does not own one allocation for its life: `resize_`, `set_`, an assignment to `data`, and an
//! operation that writes to a tensor too small for its `out=` free the memory and keep the object. So an address is good
//! only as long as the interpreter's lock is held, and is looked up again before it is read.

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use sglang_omni_payload::Source;

use super::dlpack::DlpackApi;
use super::numpy::Array;

/// So many bytes are copied without releasing the interpreter's lock, which takes a tenth of a millisecond: no other
/// thread frees memory meanwhile.
const COPIED_AT_ONCE: u64 = 1 << 20;

/// What owns a source's memory.
pub enum Owner {
    /// Memory of the payload's own, which nothing else knows.
    Copy(Py<PyAny>),
    Array(Py<PyAny>),
    Tensor(Py<PyAny>, DlpackApi),
    /// A tensor that the exchange table cannot express.
    Other(Py<PyAny>),
}

impl Owner {
    pub fn object(&self) -> &Py<PyAny> {
        let (Self::Copy(object)
        | Self::Array(object)
        | Self::Tensor(object, _)
        | Self::Other(object)) = self;
        object
    }

    /// True if the source's memory still is the owner's.
    fn has(&self, py: Python<'_>, source: &Source) -> PyResult<bool> {
        Ok(match self {
            Self::Copy(_) => true,
            Self::Array(array) => {
                // Its memory may have become smaller at the same address.
                Array::of(array.bind(py))?.is_some_and(|array| {
                    array.address() == source.address
                        && array.shape().product::<u64>() == source.shape.iter().product::<u64>()
                })
            }
            Self::Tensor(tensor, api) => api.address_of(tensor.bind(py)) == Some(source.address),
            Self::Other(tensor) => {
                let address = tensor.call_method0(py, intern!(py, "data_ptr"))?;
                address.extract::<usize>(py)? == source.address
            }
        })
    }

    /// What keeps that memory while the interpreter's lock is not held, whatever else refers to the tensor's storage.
    /// numpy has none: an array that is resized in place frees its memory in any case.
    fn storage(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self {
            Self::Copy(_) | Self::Array(_) => Ok(None),
            Self::Tensor(tensor, _) | Self::Other(tensor) => {
                tensor.call_method0(py, intern!(py, "detach")).map(Some)
            }
        }
    }
}

/// Runs `copy`, which reads the memory of these sources, `len` bytes of it. Raises a RuntimeError if that memory was freed
/// since it was described, or while it was copied; then what was copied is not theirs.
pub fn read_sources<'a>(
    py: Python<'_>,
    rows: impl Iterator<Item = (&'a Owner, &'a Source)> + Clone,
    len: u64,
    copy: impl FnOnce() + Send,
) -> PyResult<()> {
    check(py, rows.clone())?;
    if len <= COPIED_AT_ONCE {
        copy();
        return Ok(());
    }
    let storages = rows.clone().map(|(owner, _)| owner.storage(py));
    let _kept: Vec<_> = storages.collect::<PyResult<_>>()?;
    py.detach(copy);
    check(py, rows)
}

/// Raises a RuntimeError if one of these sources' memory is no longer its owner's.
pub fn check<'a>(
    py: Python<'_>,
    rows: impl Iterator<Item = (&'a Owner, &'a Source)>,
) -> PyResult<()> {
    for (owner, source) in rows {
        if !source.shape.contains(&0) && !owner.has(py, source)? {
            return Err(PyRuntimeError::new_err(format!(
                "a tensor of shape {:?} has other memory than when it was packed: until its payload is written it must not be \
                 resized, nor its data replaced",
                source.shape
            )));
        }
    }
    Ok(())
}
