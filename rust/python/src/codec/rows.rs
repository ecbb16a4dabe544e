//! Collects the tensors of an object that is being packed, each as one row of the payload's table.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};
use sglang_omni_payload::{DType, Framework, Layout, Source, is_whole, layouts};

use super::Tools;
use super::dlpack::DlpackApi;
use super::numpy::Array;
use super::owner::{Owner, read_sources};
use super::types::AddressHash;

#[derive(Default)]
pub struct Rows {
    pub sources: Vec<Source>,
    /// The owner of each row's memory: the tensor itself or a copy that replaces it.
    pub owners: Vec<Owner>,
    /// Tensors that a copy replaces. They are kept because `numbers` identifies tensors by address.
    replaced: Vec<Py<PyAny>>,
    /// The row of each tensor, by the address of its object.
    numbers: HashMap<usize, u32, AddressHash>,
    /// Rows whose memory is a GPU's.
    pub foreign: Vec<usize>,
    /// Whether any row is a view that skips memory.
    gapped: bool,
}

/// Stand-in, dtype code, address, shape, strides in elements, whether it is in a GPU's memory.
type DescribedTensor<'py> = (Bound<'py, PyAny>, u8, usize, Vec<u64>, Vec<i64>, bool);

impl Rows {
    pub fn number_of(&self, object: &Bound<'_, PyAny>) -> Option<u32> {
        self.numbers.get(&(object.as_ptr() as usize)).copied()
    }

    /// Adds an array that has no row yet. `None` if it must be written into the message.
    pub fn add_array(&mut self, object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let Some(array) = Array::of(object)? else {
            return Ok(None);
        };
        let source = source_of(&array);
        let owner = Owner::Array(object.clone().unbind());
        Ok(Some(self.add(object, owner, source)))
    }

    /// Adds a tensor that has no row yet. `None` if it must be written into the message.
    pub fn add_tensor(
        &mut self,
        tools: &Tools,
        api: Option<DlpackApi>,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<Option<u32>> {
        if let Some(api) = api
            && let Some(tensor) = api.describe(object)?
        {
            let item = tensor.dtype.itemsize as i64;
            let source = Source {
                framework: Framework::Torch,
                dtype: tensor.dtype,
                address: tensor.address,
                shape: tensor.shape.iter().map(|&size| size as u64).collect(),
                strides: tensor
                    .strides
                    .iter()
                    .map(|stride| stride.wrapping_mul(item))
                    .collect(),
            };
            let owner = Owner::Tensor(object.clone().unbind(), api);
            return Ok(Some(self.add(object, owner, source)));
        }
        let py = object.py();
        let described = tools.describe_tensor.bind(py).call1((object,))?;
        if described.is_none() {
            return Ok(None);
        }
        let (owner, source, foreign) = described_source(&described)?;
        if foreign {
            self.foreign.push(self.sources.len());
        }
        if !object.is(&owner) {
            self.replaced.push(object.clone().unbind());
        }
        Ok(Some(self.add(object, Owner::Other(owner.unbind()), source)))
    }

    fn add(&mut self, object: &Bound<'_, PyAny>, owner: Owner, source: Source) -> u32 {
        let number = self.sources.len();
        self.gapped |= !is_whole(&source);
        self.owners.push(owner);
        self.sources.push(source);
        // The format counts rows in 32 bits and refuses more when they are laid out.
        let number = number as u32;
        self.numbers.insert(object.as_ptr() as usize, number);
        number
    }

    /// Copies views that skip memory to new memory without the gaps, in which views that share bytes still share them.
    /// So a payload has no bytes but those of its tensors.
    pub fn close_gaps(&mut self, py: Python<'_>, tools: &Tools) -> PyResult<()> {
        if !self.gapped {
            return Ok(());
        }
        for layout in layouts(&self.sources) {
            let foreign = |(row, ..): (usize, usize, &[i64])| self.foreign.contains(&row);
            let (owner, address) = if layout.views().any(foreign) {
                self.gather_foreign(py, tools, &layout)?
            } else {
                let memory = PyByteArray::new_with(py, layout.len, |memory| {
                    let rows = layout
                        .views()
                        .map(|(row, ..)| (&self.owners[row], &self.sources[row]));
                    // SAFETY: `memory` has the layout's length, and the sources' memory is there while this runs.
                    let copy = || unsafe { layout.gather(memory.as_mut_ptr()) };
                    read_sources(py, rows, layout.len as u64, copy)
                })?;
                let address = memory.data() as usize;
                (memory.into_any(), address)
            };
            for (row, offset, strides) in layout.views() {
                self.sources[row].address = address + offset;
                self.sources[row].strides = strides.to_vec();
                self.owners[row] = Owner::Copy(owner.clone().unbind());
            }
        }
        Ok(())
    }

    /// Copies views of a GPU's memory, which Python must do.
    fn gather_foreign<'py>(
        &self,
        py: Python<'py>,
        tools: &Tools,
        layout: &Layout,
    ) -> PyResult<(Bound<'py, PyAny>, usize)> {
        let views: Vec<_> = layout
            .views()
            .map(|(row, offset, strides)| {
                let item = self.sources[row].dtype.itemsize;
                let strides: Vec<i64> = strides.iter().map(|by| by / item as i64).collect();
                (self.owners[row].object(), offset / item as usize, strides)
            })
            .collect();
        tools.gather.bind(py).call1((views, layout.len))?.extract()
    }
}

fn source_of(array: &Array<'_>) -> Source {
    Source {
        framework: Framework::Numpy,
        dtype: array.dtype,
        address: array.address(),
        shape: array.shape().collect(),
        strides: array.strides().collect(),
    }
}

fn described_source<'py>(
    described: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, Source, bool)> {
    let (owner, code, address, shape, mut strides, foreign): DescribedTensor<'py> =
        described.cast::<PyTuple>()?.extract()?;
    let dtype = DType::from_code(code)
        .ok_or_else(|| pyo3::exceptions::PyValueError::new_err("unknown dtype"))?;
    for stride in &mut strides {
        *stride = stride.wrapping_mul(dtype.itemsize as i64);
    }
    let source = Source {
        framework: Framework::Torch,
        dtype,
        address,
        shape,
        strides,
    };
    Ok((owner, source, foreign))
}
