//! Makes tensors and arrays that view received bytes.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};
use sglang_omni_payload::msgpack::{Token, TokenReader};
use sglang_omni_payload::{DTYPES, DType, Framework, TensorView};

use super::{Tools, code, numpy};
use crate::buffer::BufferView;

/// The tensors of one payload, each made when first asked for.
pub struct Views<'a, 'py> {
    buffer: &'a Bound<'py, PyAny>,
    held: &'a Arc<BufferView>,
    tensors: Vec<TensorView>,
    made: Vec<Option<Bound<'py, PyAny>>>,
}

impl<'a, 'py> Views<'a, 'py> {
    /// `tensors` were decoded from `held`, which holds `buffer`.
    pub fn new(
        buffer: &'a Bound<'py, PyAny>,
        held: &'a Arc<BufferView>,
        tensors: Vec<TensorView>,
    ) -> Self {
        Self {
            buffer,
            held,
            made: vec![None; tensors.len()],
            tensors,
        }
    }

    pub fn get(
        &mut self,
        py: Python<'py>,
        tools: &Tools,
        number: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let count = self.tensors.len();
        let index = usize::try_from(number)
            .ok()
            .filter(|&index| index < count)
            .ok_or_else(|| {
                PyValueError::new_err(format!(
                    "the payload has {count} tensors, not one of number {number}"
                ))
            })?;
        if let Some(made) = &self.made[index] {
            return Ok(made.clone());
        }
        let tensor = &self.tensors[index];
        let made = match tensor.framework {
            Framework::Torch => self.torch(py, tools, tensor)?,
            Framework::Numpy => self.numpy(py, tools, tensor)?,
        };
        self.made[index] = Some(made.clone());
        Ok(made)
    }

    fn torch(
        &self,
        py: Python<'py>,
        tools: &Tools,
        tensor: &TensorView,
    ) -> PyResult<Bound<'py, PyAny>> {
        let item = tensor.dtype.itemsize as i64;
        let possible = tensor.shape.iter().all(|&size| i64::try_from(size).is_ok())
            && tensor.strides.iter().all(|&stride| stride >= 0);
        if !possible {
            return Err(PyValueError::new_err(format!(
                "a torch tensor cannot have the sizes {:?} and strides {:?}",
                tensor.shape, tensor.strides
            )));
        }
        let strides: Vec<i64> = if is_contiguous(tensor) {
            dense_strides(&tensor.shape)
        } else {
            tensor.strides.iter().map(|stride| stride / item).collect()
        };
        if let Some(api) = tools.torch(py)?
            && !tensor.shape.contains(&0)
        {
            let address = self.held.as_ptr() as usize + tensor.offset;
            let strides = strides.iter().copied();
            // SAFETY: `decode` checked that the tensor lies inside the buffer, which is held.
            let view =
                unsafe { api.view(py, self.held, tensor.dtype, address, &tensor.shape, strides)? };
            if let Some(view) = view {
                return Ok(view);
            }
        }
        tools.view_tensor.bind(py).call1((
            self.buffer,
            tensor.dtype.name,
            tensor.offset,
            PyTuple::new(py, &tensor.shape)?,
            PyTuple::new(py, &strides)?,
        ))
    }

    fn numpy(
        &self,
        py: Python<'py>,
        tools: &Tools,
        tensor: &TensorView,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dtype = tools.numpy_dtype(py, tensor.dtype)?;
        let shape = PyTuple::new(py, &tensor.shape)?;
        let ndarray = tools.ndarray.bind(py);
        if tensor.shape.contains(&0) {
            return ndarray.call1((shape, dtype));
        }
        if is_contiguous(tensor) {
            return ndarray.call1((shape, dtype, self.buffer, tensor.offset));
        }
        let strides = PyTuple::new(py, &tensor.strides)?;
        ndarray.call1((shape, dtype, self.buffer, tensor.offset, strides))
    }
}

fn is_contiguous(tensor: &TensorView) -> bool {
    let mut expected = tensor.dtype.itemsize as i64;
    tensor.shape.contains(&0)
        || tensor
            .shape
            .iter()
            .zip(&tensor.strides)
            .rev()
            .all(|(&size, &stride)| {
                let fits = size == 1 || stride == expected;
                // Checked by `decode`: the tensor lies in memory that exists.
                expected = expected.wrapping_mul(size as i64);
                fits
            })
}

/// The strides of a contiguous tensor, in elements.
fn dense_strides(shape: &[u64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].wrapping_mul(shape[dim] as i64);
    }
    strides
}

/// The array or tensor in an extension's body. `None` if Python must make or refuse it.
pub fn in_place<'py>(
    py: Python<'py>,
    tools: &Tools,
    code: i8,
    body: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some((name, shape, data)) = parts(body) else {
        return Ok(None);
    };
    let dtype = if code == code::ARRAY {
        numpy::dtype_named(name)
    } else {
        DTYPES
            .into_iter()
            .find(|dtype| dtype.name.as_bytes() == name)
    };
    let Some(dtype) = dtype.filter(|dtype| nbytes(*dtype, &shape) == Some(data.len())) else {
        return Ok(None);
    };
    if code == code::ARRAY {
        let (dtype, shape) = (tools.numpy_dtype(py, dtype)?, PyTuple::new(py, &shape)?);
        let memory = PyByteArray::new(py, data);
        return tools
            .ndarray
            .bind(py)
            .call1((shape, dtype, memory))
            .map(Some);
    }
    if data.is_empty() {
        return Ok(None);
    }
    let Some(api) = tools.torch(py)? else {
        return Ok(None);
    };
    let held = Arc::new(BufferView::new(PyByteArray::new(py, data).as_any())?);
    let address = held.as_ptr() as usize;
    let strides = dense_strides(&shape).into_iter();
    // SAFETY: the bytes are as many as a contiguous tensor of that shape has.
    unsafe { api.view(py, &held, dtype, address, &shape, strides) }
}

/// The name, shape and data of a body. `None` if it has another form.
fn parts(body: &[u8]) -> Option<(&[u8], Vec<u64>, &[u8])> {
    let mut reader = TokenReader::new(body);
    let Token::Array(3) = reader.next_token().ok()? else {
        return None;
    };
    let Token::Str(name) = reader.next_token().ok()? else {
        return None;
    };
    let Token::Array(dims @ 0..=64) = reader.next_token().ok()? else {
        return None;
    };
    let mut shape = Vec::with_capacity(dims);
    for _ in 0..dims {
        match reader.next_token().ok()? {
            Token::Int(size) => shape.push(u64::try_from(size).ok()?),
            _ => return None,
        }
    }
    let Token::Bin(data) = reader.next_token().ok()? else {
        return None;
    };
    reader.finish().ok()?;
    Some((name, shape, data))
}

fn nbytes(dtype: DType, shape: &[u64]) -> Option<usize> {
    let elements = shape
        .iter()
        .try_fold(dtype.itemsize, |total, &size| total.checked_mul(size))?;
    usize::try_from(elements).ok()
}
