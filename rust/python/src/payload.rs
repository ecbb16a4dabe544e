//! Packing Python's tensors into the payload format, and reading them back.
//!
//! Tensors cross as addresses with sizes and strides, because neither torch nor most of its dtypes
//! speak the buffer protocol; the Python side keeps the objects alive.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sglang_omni_payload::{DTYPES, DType, Framework, Plan, Source, decode};

/// `(framework, dtype, address, shape, strides)`; torch's strides count elements, numpy's bytes.
type SourceRow = (u8, u8, usize, Vec<u64>, Vec<i64>);
/// `(framework, dtype, offset in bytes, shape, strides or None where contiguous)`.
type TensorRow = (u8, u8, usize, Vec<u64>, Option<Vec<i64>>);

#[pyclass(frozen, module = "sglang_omni._core")]
pub struct PayloadPlan {
    pub plan: Plan,
    /// The tensors whose memory the plan points to, kept for as long as anyone may write it.
    _sources: Py<PyAny>,
}

#[pymethods]
impl PayloadPlan {
    #[new]
    fn new(skeleton: &[u8], tensors: Vec<SourceRow>, sources: Py<PyAny>) -> PyResult<Self> {
        let views = tensors
            .into_iter()
            .map(source)
            .collect::<PyResult<Vec<_>>>()?;
        let plan = Plan::new(skeleton, &views)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            plan,
            _sources: sources,
        })
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.plan.len()
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.plan.len() as usize, |target| {
            // SAFETY: `target` is exactly that long and new; the Python side keeps the sources alive.
            unsafe { self.plan.write_to(target.as_mut_ptr()) };
            Ok(())
        })
    }

    /// Writes to `nbytes` bytes of memory at an address.
    fn write_to(&self, py: Python<'_>, address: usize) {
        // SAFETY: the Python side owns that memory and keeps it and the sources alive.
        py.detach(|| unsafe { self.plan.write_to(address as *mut u8) });
    }
}

fn source((framework, dtype, address, shape, mut strides): SourceRow) -> PyResult<Source> {
    let framework = Framework::from_code(framework)
        .ok_or_else(|| PyValueError::new_err("unknown framework"))?;
    let dtype = DType::from_code(dtype).ok_or_else(|| PyValueError::new_err("unknown dtype"))?;
    if framework == Framework::Torch {
        for stride in &mut strides {
            *stride = stride
                .checked_mul(dtype.itemsize as i64)
                .ok_or_else(|| PyValueError::new_err("a tensor's strides do not fit 64 bits"))?;
        }
    }
    Ok(Source {
        framework,
        dtype,
        address,
        shape,
        strides,
    })
}

/// The skeleton and the tensors of a payload, checked; raises ValueError for malformed ones.
#[pyfunction]
fn decode_payload<'py>(
    py: Python<'py>,
    payload: PyBuffer<u8>,
) -> PyResult<(Bound<'py, PyBytes>, Vec<TensorRow>)> {
    if !payload.is_c_contiguous() {
        return Err(PyBufferError::new_err("a payload must be contiguous"));
    }
    // SAFETY: the buffer is held for the length of this call. By the relay's contract nobody writes
    // to a payload under way; a peer that does can spoil its values, which are copied before use.
    let bytes =
        unsafe { std::slice::from_raw_parts(payload.buf_ptr().cast::<u8>(), payload.len_bytes()) };
    let decoded = decode(bytes).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let rows = decoded
        .tensors
        .into_iter()
        .map(|tensor| {
            let strides = (!is_contiguous(tensor.dtype.itemsize, &tensor.shape, &tensor.strides))
                .then(|| {
                    let unit = if tensor.framework == Framework::Torch {
                        tensor.dtype.itemsize as i64
                    } else {
                        1
                    };
                    tensor.strides.iter().map(|stride| stride / unit).collect()
                });
            (
                tensor.framework as u8,
                tensor.dtype.code,
                tensor.offset,
                tensor.shape,
                strides,
            )
        })
        .collect();
    Ok((PyBytes::new(py, &bytes[decoded.skeleton]), rows))
}

fn is_contiguous(itemsize: u64, shape: &[u64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = itemsize as i64;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size != 1 && stride != expected {
            return false;
        }
        // Checked by `decode`: the tensor lies in memory that exists.
        expected *= size as i64;
    }
    true
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PayloadPlan>()?;
    module.add_function(wrap_pyfunction!(decode_payload, module)?)?;
    let names: Vec<&str> = DTYPES.iter().map(|dtype| dtype.name).collect();
    module.add("PAYLOAD_DTYPES", names)?;
    Ok(())
}
