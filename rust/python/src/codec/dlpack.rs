//! Reads and makes torch tensors through DLPack's C exchange table, without a call into Python.
//!
//! The structs are those of DLPack 1.x (`dlpack.h`). `proto/tensors.py` handles tensors that the table cannot express,
//! and versions of torch without a table.

#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{ffi, intern};
use sglang_omni_payload::{DTYPES, DType};

use crate::buffer::BufferView;

#[cfg(test)]
pub use tests::FakeTensor;

const MAJOR: u32 = 1;
const CPU: i32 = 1;
/// Linux lets no process have memory below this address (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: usize = 1 << 16;

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

impl DlTensor {
    fn address(&self) -> usize {
        self.data as usize + self.byte_offset as usize
    }
}

#[repr(C)]
struct DlManaged {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: unsafe extern "C" fn(*mut DlManaged),
    flags: u64,
    tensor: DlTensor,
}

#[repr(C)]
struct ApiTable {
    version: [u32; 2],
    previous: *const c_void,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: Option<unsafe extern "C" fn(*mut DlManaged, *mut *mut ffi::PyObject) -> i32>,
    tensor_from_object: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut DlTensor) -> i32>,
    stream: *const c_void,
}

/// torch's exchange table, which lives as long as the process.
#[derive(Clone, Copy)]
pub struct DlpackApi(&'static ApiTable);

// SAFETY: the table is constant, and its functions may be called by any thread with the interpreter's lock.
unsafe impl Send for DlpackApi {}
// SAFETY: as above.
unsafe impl Sync for DlpackApi {}

/// The part of a strided CPU tensor that packing needs. Borrows the tensor's own sizes.
pub struct TensorInfo<'a> {
    pub dtype: DType,
    pub address: usize,
    pub shape: &'a [i64],
    /// In elements.
    pub strides: &'a [i64],
}

impl TensorInfo<'_> {
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1i64;
        self.shape.contains(&0)
            || self
                .shape
                .iter()
                .zip(self.strides)
                .rev()
                .all(|(&size, &stride)| {
                    let fits = size == 1 || stride == expected;
                    expected = expected.wrapping_mul(size);
                    fits
                })
    }
}

impl DlpackApi {
    /// Reads `__dlpack_c_exchange_api__` of `torch.Tensor`. `None` if there is none of this major version; raises if it
    /// is no such capsule.
    pub fn of(tensor_type: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = tensor_type.py();
        let Some(capsule) = tensor_type.getattr_opt(intern!(py, "__dlpack_c_exchange_api__"))?
        else {
            return Ok(None);
        };
        // SAFETY: a Python object and a C string; any object but such a capsule gives null and an error.
        let table =
            unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
        if table.is_null() {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: the name vouches for the type, and DLPack for the lifetime.
        let table = unsafe { &*table.cast::<ApiTable>() };
        Ok((table.version[0] == MAJOR).then_some(Self(table)))
    }

    /// `None` for tensors that the table cannot express, or not completely: other devices and layouts, dtypes unknown
    /// to DLPack, and lazy negation and conjugation.
    pub fn describe<'a>(&self, tensor: &'a Bound<'_, PyAny>) -> PyResult<Option<TensorInfo<'a>>> {
        let py = tensor.py();
        let Some(out) = self.read(tensor) else {
            return Ok(None);
        };
        let Some(dtype) = from_dl(out.dtype) else {
            return Ok(None);
        };
        if out.device_type != CPU || (out.dtype.bits == 8 && is_shorter(tensor)?) {
            return Ok(None);
        }
        let complex = out.dtype.code == 5;
        if flag(tensor, intern!(py, "is_neg"))?
            || (complex && flag(tensor, intern!(py, "is_conj"))?)
        {
            return Ok(None);
        }
        let dims = out.ndim as usize;
        // SAFETY: the arrays belong to the tensor and stay while it is borrowed and not resized.
        let (shape, strides) = unsafe { (dims_of(out.shape, dims), dims_of(out.strides, dims)) };
        let address = out.address();
        // A null pointer plus an offset: a view of memory that was freed.
        if address < LOWEST_ADDRESS && !shape.contains(&0) {
            return Ok(None);
        }
        Ok(Some(TensorInfo {
            dtype,
            address,
            shape,
            strides,
        }))
    }

    /// The address of a tensor's first element. `None` if the table cannot express it any more.
    pub fn address_of(&self, tensor: &Bound<'_, PyAny>) -> Option<usize> {
        self.read(tensor).map(|tensor| tensor.address())
    }

    fn read(&self, tensor: &Bound<'_, PyAny>) -> Option<DlTensor> {
        let read = self.0.tensor_from_object?;
        let mut out = std::mem::MaybeUninit::<DlTensor>::uninit();
        // SAFETY: `tensor` is a torch.Tensor, which is what the table is for.
        if unsafe { read(tensor.as_ptr(), out.as_mut_ptr()) } != 0 {
            drop(PyErr::take(tensor.py())); // `proto/tensors.py` says why it cannot
            return None;
        }
        // SAFETY: 0 means that it was filled in.
        Some(unsafe { out.assume_init() })
    }

    /// Makes a tensor that views `owner`'s memory and keeps it. `None` for a dtype that DLPack does not have.
    ///
    /// # Safety
    /// `address` is inside that memory, and so is every element of these sizes and strides (in elements).
    pub unsafe fn view<'py>(
        &self,
        py: Python<'py>,
        owner: &Arc<BufferView>,
        dtype: DType,
        address: usize,
        shape: &[u64],
        strides: impl Iterator<Item = i64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (Some(dtype), Some(make)) = (to_dl(dtype), self.0.managed_to_object) else {
            return Ok(None);
        };
        let dims: Vec<i64> = shape
            .iter()
            .map(|&size| size as i64)
            .chain(strides)
            .collect();
        let mut view = Box::new(ManagedView {
            managed: DlManaged {
                version: [MAJOR, 0],
                manager: std::ptr::null_mut(),
                deleter: delete,
                flags: 0,
                tensor: DlTensor {
                    data: address as *mut c_void,
                    device_type: CPU,
                    device_id: 0,
                    ndim: shape.len() as i32,
                    dtype,
                    shape: std::ptr::null_mut(),
                    strides: std::ptr::null_mut(),
                    byte_offset: 0,
                },
            },
            dims,
            _owner: Arc::clone(owner),
        });
        view.managed.tensor.shape = view.dims.as_mut_ptr();
        // SAFETY: `dims` holds as many strides behind the sizes.
        view.managed.tensor.strides = unsafe { view.dims.as_mut_ptr().add(shape.len()) };
        let managed = Box::into_raw(view).cast::<DlManaged>();
        let mut object = std::ptr::null_mut();
        // SAFETY: `managed` is complete, and torch takes it over.
        if unsafe { make(managed, &raw mut object) } != 0 {
            // `managed` is leaked, because torch may or may not have freed it.
            let error = PyErr::fetch(py);
            return Err(PyRuntimeError::new_err(format!(
                "torch makes no tensor of a view: {error}"
            )));
        }
        // SAFETY: 0 means that it is a new reference.
        Ok(Some(unsafe { Bound::from_owned_ptr(py, object) }))
    }
}

fn flag(tensor: &Bound<'_, PyAny>, method: &Bound<'_, pyo3::types::PyString>) -> PyResult<bool> {
    // SAFETY: two live objects and the end of the list.
    let result = unsafe {
        ffi::PyObject_CallMethodObjArgs(
            tensor.as_ptr(),
            method.as_ptr(),
            std::ptr::null_mut::<ffi::PyObject>(),
        )
    };
    // SAFETY: a new reference or null with an error.
    unsafe { Bound::from_owned_ptr_or_err(tensor.py(), result) }?.is_truthy()
}

/// # Safety
/// `array` has `dims` numbers for as long as `'a`, or `dims` is 0.
unsafe fn dims_of<'a>(array: *mut i64, dims: usize) -> &'a [i64] {
    if dims == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(array, dims) }
}

#[repr(C)]
struct ManagedView {
    /// The first field, so that a pointer to it is a pointer to the whole.
    managed: DlManaged,
    dims: Vec<i64>,
    _owner: Arc<BufferView>,
}

unsafe extern "C" fn delete(managed: *mut DlManaged) {
    // SAFETY: torch calls this once, with what `view` made.
    drop(unsafe { Box::from_raw(managed.cast::<ManagedView>()) });
}

const fn dl(code: u8, bits: u8) -> Option<DlType> {
    Some(DlType {
        code,
        bits,
        lanes: 1,
    })
}

/// DLPack's name for each of the format's dtypes.
const DL_TYPES: [Option<DlType>; DTYPES.len()] = [
    dl(6, 8),   // bool
    dl(1, 8),   // uint8
    dl(0, 8),   // int8
    dl(1, 16),  // uint16
    dl(0, 16),  // int16
    dl(1, 32),  // uint32
    dl(0, 32),  // int32
    dl(1, 64),  // uint64
    dl(0, 64),  // int64
    dl(2, 16),  // float16
    dl(4, 16),  // bfloat16
    dl(2, 32),  // float32
    dl(2, 64),  // float64
    dl(5, 32),  // complex32
    dl(5, 64),  // complex64
    dl(5, 128), // complex128
    dl(10, 8),  // float8_e4m3fn
    dl(11, 8),  // float8_e4m3fnuz
    dl(12, 8),  // float8_e5m2
    dl(13, 8),  // float8_e5m2fnuz
    dl(14, 8),  // float8_e8m0fnu
    None,       // float4_e2m1fn_x2
    None,       // bits8
    None,       // bits16
];

/// Whether a tensor has integers of less than a byte, which torch describes as bytes.
fn is_shorter(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    static SHORTER: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
    let py = tensor.py();
    let shorter = SHORTER.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let named = |name: String| torch.getattr_opt(name).transpose();
        (1..8)
            .flat_map(|bits| [format!("int{bits}"), format!("uint{bits}")])
            .filter_map(named)
            .map(|dtype| dtype.map(Bound::unbind))
            .collect::<PyResult<Vec<_>>>()
    })?;
    let dtype = tensor.getattr(intern!(py, "dtype"))?;
    Ok(shorter.iter().any(|known| dtype.is(known)))
}

fn from_dl(dtype: DlType) -> Option<DType> {
    DL_TYPES
        .iter()
        .position(|&known| known == Some(dtype))
        .map(|code| DTYPES[code])
}

fn to_dl(dtype: DType) -> Option<DlType> {
    DL_TYPES[usize::from(dtype.code)]
}
