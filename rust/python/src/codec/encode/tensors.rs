//! Tensors and arrays of an object: rows of a payload, or bytes in the message.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sglang_omni_payload::DType;
use sglang_omni_payload::msgpack::{
    begin_ext, end_ext, write_array, write_bin, write_ext, write_str, write_uint,
};

use super::Walk;
use crate::codec::code;
use crate::codec::dlpack::DlpackApi;
use crate::codec::numpy::{self, Array};
use crate::codec::pack_error::PackResult;

impl<'py> Walk<'_, 'py> {
    #[inline(never)]
    pub(super) fn array(&mut self, object: &Bound<'py, PyAny>, encode: &Py<PyAny>) -> PackResult {
        if let Some(rows) = &mut self.rows {
            let number = match rows.number_of(object) {
                Some(number) => Some(number),
                None => rows.add_array(object)?,
            };
            if let Some(number) = number {
                return self.reference(number);
            }
        } else if let Some(array) = Array::of(object)?
            && array.is_contiguous()
            && let Some(name) = numpy::name(array.dtype)
        {
            // SAFETY: a contiguous array's memory, which stays while the array does.
            return unsafe {
                self.in_place(
                    code::ARRAY,
                    name,
                    array.dtype,
                    array.address(),
                    array.shape(),
                )
            };
        }
        self.by_python(object, encode)
    }

    #[inline(never)]
    pub(super) fn tensor(
        &mut self,
        object: &Bound<'py, PyAny>,
        api: Option<DlpackApi>,
        encode: &Py<PyAny>,
    ) -> PackResult {
        if let Some(rows) = &mut self.rows {
            let number = match rows.number_of(object) {
                Some(number) => Some(number),
                None => rows.add_tensor(self.tools, api, object)?,
            };
            if let Some(number) = number {
                return self.reference(number);
            }
        } else if let Some(api) = api
            && let Some(tensor) = api.describe(object)?
            && tensor.is_contiguous()
        {
            let shape = tensor.shape.iter().map(|&size| size as u64);
            // SAFETY: a contiguous tensor's memory, which stays while the tensor does.
            return unsafe {
                self.in_place(
                    code::TENSOR,
                    tensor.dtype.name,
                    tensor.dtype,
                    tensor.address,
                    shape,
                )
            };
        }
        self.by_python(object, encode)
    }

    fn reference(&mut self, number: u32) -> PackResult {
        let mut body = Vec::with_capacity(5);
        write_uint(&mut body, u64::from(number));
        Ok(write_ext(&mut self.out, code::TENSOR_REF, &body)?)
    }

    /// # Safety
    /// A contiguous tensor of that dtype and shape lies at `address`.
    unsafe fn in_place(
        &mut self,
        code: i8,
        name: &str,
        dtype: DType,
        address: usize,
        shape: impl ExactSizeIterator<Item = u64>,
    ) -> PackResult {
        let ext = begin_ext(&mut self.out, code);
        write_array(&mut self.out, 3)?;
        write_str(&mut self.out, name.as_bytes())?;
        write_array(&mut self.out, shape.len())?;
        let mut nbytes = dtype.itemsize;
        for size in shape {
            nbytes = nbytes
                .checked_mul(size)
                .ok_or_else(|| PyRuntimeError::new_err("its sizes are impossible"))?;
            write_uint(&mut self.out, size);
        }
        let bytes = if nbytes == 0 {
            &[]
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(address as *const u8, nbytes as usize) }
        };
        write_bin(&mut self.out, bytes)?;
        Ok(end_ext(&mut self.out, ext)?)
    }
}
