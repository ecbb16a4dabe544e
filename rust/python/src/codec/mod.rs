//! Turns Python objects into msgpack with typed extensions and back, and tensors in them into a payload.
//!
//! `proto/codec.py` describes classes and handles rare types; `Codec` receives these parts as callables.

#[expect(unsafe_code)]
mod decode;
#[expect(unsafe_code)]
mod dlpack;
#[expect(unsafe_code)]
mod encode;
mod key_cache;
#[expect(unsafe_code)]
mod numpy;
mod owner;
mod pack_error;
#[expect(unsafe_code)]
mod rows;
#[cfg(test)]
mod tests;
mod types;
#[expect(unsafe_code)]
mod views;

use std::sync::{Arc, OnceLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sglang_omni_payload::{DType, Plan, copy_head, decode_head};

use crate::buffer::BufferView;
use crate::payload::PayloadPlan;
use decode::{Decoder, as_value_error};
use dlpack::DlpackApi;
use encode::Walk;
use key_cache::SharedKeyCache;
use rows::Rows;
use types::Classes;
use views::Views;

pub use owner::{Owner, check, read_sources};
#[cfg(test)]
pub use {dlpack::FakeTensor, numpy::FakeArray};

/// Extension codes. They are part of the wire format: a code never changes its meaning.
mod code {
    pub const TUPLE: i8 = 1;
    pub const SET: i8 = 2;
    pub const FROZENSET: i8 = 3;
    pub const BIGINT: i8 = 4;
    pub const COMPLEX: i8 = 5;
    pub const ENUM: i8 = 6;
    pub const DATACLASS: i8 = 7;
    pub const NAMEDTUPLE: i8 = 8;
    pub const SCALAR: i8 = 9;
    pub const ARRAY: i8 = 10;
    pub const NUMPY_DTYPE: i8 = 11;
    pub const TENSOR: i8 = 12;
    pub const TORCH_DTYPE: i8 = 13;
    pub const DEVICE: i8 = 14;
    pub const SIZE: i8 = 15;
    pub const TENSOR_REF: i8 = 16;
}

/// The callables and objects that `proto/codec.py` passes to the codec.
struct Tools {
    classes: Classes,
    /// An extension's code and body -> the object.
    revive: Py<PyAny>,
    /// () -> torch.Tensor.
    load_torch: Py<PyAny>,
    /// A tensor -> (stand-in, dtype code, address, shape, strides in elements, whether it is in a GPU's memory) or
    /// None.
    describe_tensor: Py<PyAny>,
    /// Buffer, dtype's name, offset in bytes, shape, strides in elements -> a tensor.
    view_tensor: Py<PyAny>,
    /// Tensors of a GPU's memory, each with an offset and strides in elements, and a size in bytes -> new memory of
    /// that size with all of them, and its address.
    gather: Py<PyAny>,
    ndarray: Py<PyAny>,
    /// By the dtype's code.
    numpy_dtypes: Py<PyDict>,
    new_object: Py<PyAny>,
    new_tuple: Py<PyAny>,
    torch: OnceLock<Option<DlpackApi>>,
    keys: SharedKeyCache,
}

impl Tools {
    /// torch's DLPack table, if it has one. Imports torch.
    fn torch(&self, py: Python<'_>) -> PyResult<Option<DlpackApi>> {
        if let Some(known) = self.torch.get() {
            return Ok(*known);
        }
        let api = DlpackApi::of(&self.load_torch.bind(py).call0()?)?;
        Ok(*self.torch.get_or_init(|| api))
    }

    fn numpy_dtype<'py>(&self, py: Python<'py>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        self.numpy_dtypes
            .bind(py)
            .get_item(dtype.code)?
            .ok_or_else(|| PyValueError::new_err(format!("numpy has no dtype {:?}", dtype.name)))
    }
}

#[pyclass(frozen, module = "sglang_omni._core")]
struct Codec {
    tools: Tools,
}

#[pymethods]
impl Codec {
    #[new]
    #[pyo3(signature = (*, describe, find, revive, load_torch, describe_tensor, view_tensor, gather, ndarray, numpy_dtypes))]
    #[allow(clippy::too_many_arguments)] // passed by name, in one place
    fn new(
        py: Python<'_>,
        describe: Py<PyAny>,
        find: Py<PyAny>,
        revive: Py<PyAny>,
        load_torch: Py<PyAny>,
        describe_tensor: Py<PyAny>,
        view_tensor: Py<PyAny>,
        gather: Py<PyAny>,
        ndarray: Py<PyAny>,
        numpy_dtypes: Py<PyDict>,
    ) -> PyResult<Self> {
        let builtins = py.import("builtins")?;
        let new = |name| {
            builtins
                .getattr(name)?
                .getattr("__new__")
                .map(Bound::unbind)
        };
        Ok(Self {
            tools: Tools {
                classes: Classes::new(describe, find),
                revive,
                load_torch,
                describe_tensor,
                view_tensor,
                gather,
                ndarray,
                numpy_dtypes,
                new_object: new("object")?,
                new_tuple: new("tuple")?,
                torch: OnceLock::new(),
                keys: SharedKeyCache::new(),
            },
        })
    }

    fn pack<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let py = object.py();
        let mut walk = Walk::new(py, &self.tools, None);
        match walk.value(object) {
            Ok(()) => Ok(PyBytes::new(py, &walk.out)),
            Err(error) => Err(error.into_err(py)),
        }
    }

    fn plan(&self, object: &Bound<'_, PyAny>) -> PyResult<PayloadPlan> {
        let py = object.py();
        let mut walk = Walk::new(py, &self.tools, Some(Rows::default()));
        walk.value(object).map_err(|error| error.into_err(py))?;
        let mut rows = walk.rows.unwrap_or_default();
        rows.close_gaps(py, &self.tools)?;
        let mut plan = Plan::new(&walk.out, &rows.sources)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        for &row in &rows.foreign {
            plan.set_foreign(rows.sources[row].address);
        }
        Ok(PayloadPlan::new(plan, rows.sources, rows.owners))
    }

    #[expect(unsafe_code)]
    #[pyo3(signature = (data, *, trusted = false))]
    fn unpack<'py>(&self, data: &Bound<'py, PyAny>, trusted: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = data.py();
        let view = BufferView::new(data).map_err(|error| as_value_error(py, error))?;
        // SAFETY: a message belongs to its receiver alone and is not written to.
        let message = unsafe { view.as_slice() };
        Decoder::new(py, &self.tools, trusted, None).message(message)
    }

    #[expect(unsafe_code)]
    #[pyo3(signature = (payload, *, trusted = false))]
    fn unpack_payload<'py>(
        &self,
        payload: &Bound<'py, PyAny>,
        trusted: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = payload.py();
        let view = BufferView::new(payload).map_err(|error| as_value_error(py, error))?;
        let view = Arc::new(view);
        // The head is copied, because a sender that breaks the contract may write to it while it is read.
        // SAFETY: the view has that many bytes.
        let head = unsafe { copy_head(view.as_ptr(), view.len()) };
        let decoded = decode_head(&head, view.len())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let views = Views::new(payload, &view, decoded.tensors);
        Decoder::new(py, &self.tools, trusted, Some(views)).message(&head[decoded.skeleton])
    }

    /// Forgets which class each name stands for, because one of them has changed.
    fn forget_names(&self) {
        self.tools.classes.forget_names();
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Codec>()
}
