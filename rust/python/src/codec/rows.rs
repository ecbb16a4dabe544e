//! The tensors met while an object is packed: one row of the payload's table each.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sglang_omni_payload::{DType, Framework, Source, extent};

use super::Tools;
use super::dlpack::Exchange;
use super::numpy::Array;
use super::types::AddressHash;

#[derive(Default)]
pub struct Rows {
    pub sources: Vec<Source>,
    /// What each row's memory belongs to: the object itself or a copy that stands for it.
    pub owners: Vec<Py<PyAny>>,
    /// Objects that a copy stands for: an address must stay its object's own until the walk is over.
    replaced: Vec<Py<PyAny>>,
    /// An object's row, by its address.
    numbers: HashMap<usize, u32, AddressHash>,
    /// Rows in the memory of a GPU.
    pub foreign: Vec<usize>,
    /// Rows whose views skip over memory that they do not use.
    gapped: Vec<usize>,
}

/// Stand-in, dtype code, address, shape, strides in elements, whether a GPU's memory.
type DescribedTensor<'py> = (Bound<'py, PyAny>, u8, usize, Vec<u64>, Vec<i64>, bool);

impl Rows {
    pub fn number_of(&self, object: &Bound<'_, PyAny>) -> Option<u32> {
        self.numbers.get(&(object.as_ptr() as usize)).copied()
    }

    /// The row of an array not met before; `None` where it must be packed in place.
    pub fn add_array(&mut self, object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let Some(array) = Array::of(object)? else {
            return Ok(None);
        };
        let source = source_of(&array);
        Ok(Some(self.add(object, object, source)))
    }

    /// The row of a tensor not met before; `None` where it must be packed in place.
    pub fn add_tensor(
        &mut self,
        tools: &Tools,
        exchange: Option<Exchange>,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<Option<u32>> {
        if let Some(exchange) = exchange
            && let Some(tensor) = exchange.describe(object)?
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
            return Ok(Some(self.add(object, object, source)));
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
        Ok(Some(self.add(object, &owner, source)))
    }

    fn add(&mut self, object: &Bound<'_, PyAny>, owner: &Bound<'_, PyAny>, source: Source) -> u32 {
        let number = self.sources.len();
        if is_gapped(&source) {
            self.gapped.push(number);
        }
        if !object.is(owner) {
            self.replaced.push(object.clone().unbind());
        }
        self.owners.push(owner.clone().unbind());
        self.sources.push(source);
        // The format counts rows in 32 bits and refuses more when they are laid out.
        let number = number as u32;
        self.numbers.insert(object.as_ptr() as usize, number);
        number
    }

    /// Makes a view that skips memory contiguous, unless another tensor lives in the same memory.
    pub fn close_gaps(&mut self, py: Python<'_>, tools: &Tools) -> PyResult<()> {
        if self.gapped.is_empty() {
            return Ok(());
        }
        let alone = self.alone();
        for &number in &self.gapped {
            if !alone[number] {
                continue;
            }
            let dense = tools.dense.bind(py).call1((&self.owners[number],))?;
            let source = match self.sources[number].framework {
                Framework::Numpy => Array::of(&dense)?.map(|array| source_of(&array)),
                Framework::Torch => {
                    let described = tools.describe_tensor.bind(py).call1((&dense,))?;
                    Some(described_source(&described)?.1)
                }
            };
            if let Some(source) = source {
                self.sources[number] = source;
                self.owners[number] = dense.unbind();
            }
        }
        Ok(())
    }

    /// For each row whether no other row's memory overlaps with its own.
    fn alone(&self) -> Vec<bool> {
        let mut spans: Vec<(i128, i128, usize)> = self
            .sources
            .iter()
            .enumerate()
            .filter_map(|(number, source)| {
                let (low, high) = extent(source.dtype.itemsize, &source.shape, &source.strides)?;
                let first = source.address as i128;
                (low != high).then_some((first + i128::from(low), first + i128::from(high), number))
            })
            .collect();
        spans.sort_unstable();
        let mut alone = vec![false; self.sources.len()];
        let mut reached = i128::MIN;
        for (index, &(low, high, number)) in spans.iter().enumerate() {
            let next = spans.get(index + 1).map_or(i128::MAX, |span| span.0);
            alone[number] = reached <= low && high <= next;
            reached = reached.max(high);
        }
        alone
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

/// Whether the memory between the first and the last element is more than the elements take.
fn is_gapped(source: &Source) -> bool {
    let mut taken = u128::from(source.dtype.itemsize);
    let mut reach = taken;
    for (&size, &stride) in source.shape.iter().zip(&source.strides) {
        taken = taken.saturating_mul(u128::from(size));
        reach += u128::from(size.saturating_sub(1)) * u128::from(stride.unsigned_abs());
    }
    taken > 0 && reach > taken
}
