use std::cell::Cell;

use pyo3::exceptions::PyValueError;
use pyo3::types::PyBytes;

use super::*;
use crate::test_support::{attach, run};

enum Memory {
    /// What a tensor was made from.
    Buffer { _kept: BufferView },
    /// The address of what a view was made from.
    Managed(usize),
}

/// A tensor as torch's exchange table has it: read and made without a call into Python.
#[pyclass(frozen, name = "Tensor", module = "torch")]
pub struct FakeTensor {
    memory: Memory,
    address: usize,
    dtype: DlType,
    device: i32,
    shape: Vec<i64>,
    strides: Vec<i64>,
    is_neg: bool,
}

thread_local! {
    /// Whether no tensors can be made.
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

#[pymethods]
impl FakeTensor {
    #[new]
    #[pyo3(signature = (buffer, dtype, shape, strides, *, first = 0, device = CPU, is_neg = false))]
    fn new(
        buffer: &Bound<'_, PyAny>,
        dtype: &str,
        shape: Vec<i64>,
        strides: Vec<i64>,
        first: usize,
        device: i32,
        is_neg: bool,
    ) -> PyResult<Self> {
        let buffer = BufferView::new(buffer)?;
        let known = DTYPES.into_iter().find(|known| known.name == dtype);
        Ok(Self {
            address: (buffer.as_ptr() as usize).wrapping_add(first),
            memory: Memory::Buffer { _kept: buffer },
            dtype: known.and_then(to_dl).unwrap_or(DlType {
                code: 99,
                bits: 8,
                lanes: 1,
            }),
            device,
            shape,
            strides,
            is_neg,
        })
    }

    #[classattr]
    #[pyo3(name = "__dlpack_c_exchange_api__")]
    fn table(py: Python<'_>) -> PyResult<Py<PyAny>> {
        capsule(py, MAJOR, c"dlpack_exchange_api")
    }

    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    fn data_ptr(&self) -> usize {
        self.address
    }

    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.shape.clone()
    }

    #[getter]
    fn strides(&self) -> Vec<i64> {
        self.strides.clone()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        from_dl(self.dtype).map_or("int4", |dtype| dtype.name)
    }

    fn is_neg(&self) -> bool {
        self.is_neg
    }

    fn is_conj(&self) -> bool {
        false
    }

    /// The elements in order.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let item = usize::from(self.dtype.bits / 8);
        let mut offsets = vec![0];
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let steps = |&at: &i64| (0..size).map(move |i| at + i * stride);
            offsets = offsets.iter().flat_map(steps).collect();
        }
        let mut bytes = Vec::new();
        for offset in offsets {
            let at = self
                .address
                .wrapping_add_signed(offset as isize * item as isize);
            // SAFETY: an element of the tensor, whose memory is kept.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at as *const u8, item) });
        }
        PyBytes::new(py, &bytes)
    }

    #[staticmethod]
    fn refuse_views(refuse: bool) {
        REFUSES.set(refuse);
    }
}

impl Drop for FakeTensor {
    fn drop(&mut self) {
        if let Memory::Managed(managed) = self.memory {
            let managed = managed as *mut DlManaged;
            // As torch: without the lock, of which pyo3 is not told.
            // SAFETY: objects are freed with the lock; `managed` is this tensor's, and freed once.
            unsafe {
                let state = ffi::PyEval_SaveThread();
                ((*managed).deleter)(managed);
                ffi::PyEval_RestoreThread(state);
            }
        }
    }
}

unsafe extern "C" fn read(object: *mut ffi::PyObject, out: *mut DlTensor) -> i32 {
    // SAFETY: the codec calls with the lock and a live object.
    let object = unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), object) };
    let Ok(tensor) = object.cast::<FakeTensor>() else {
        PyValueError::new_err("a tensor that DLPack cannot express").restore(object.py());
        return -1;
    };
    let tensor = tensor.get();
    let read = DlTensor {
        data: tensor.address as *mut c_void,
        device_type: tensor.device,
        device_id: 0,
        ndim: tensor.shape.len() as i32,
        dtype: tensor.dtype,
        shape: tensor.shape.as_ptr().cast_mut(),
        strides: tensor.strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    // SAFETY: room for a tensor.
    unsafe { out.write(read) };
    0
}

unsafe extern "C" fn make(managed: *mut DlManaged, out: *mut *mut ffi::PyObject) -> i32 {
    // SAFETY: the codec calls with the lock.
    let py = unsafe { Python::assume_attached() };
    if REFUSES.get() {
        PyValueError::new_err("no views today").restore(py);
        return -1;
    }
    // SAFETY: a complete tensor with its sizes and strides.
    let tensor = unsafe {
        let tensor = &(*managed).tensor;
        let dims = tensor.ndim as usize;
        FakeTensor {
            memory: Memory::Managed(managed as usize),
            address: tensor.data as usize,
            dtype: tensor.dtype,
            device: tensor.device_type,
            shape: dims_of(tensor.shape, dims).to_vec(),
            strides: dims_of(tensor.strides, dims).to_vec(),
            is_neg: false,
        }
    };
    let object = Bound::new(py, tensor).expect("memory for a tensor");
    // SAFETY: room for a pointer.
    unsafe { out.write(object.into_ptr()) };
    0
}

/// An exchange table of that major version.
fn capsule(py: Python<'_>, major: u32, name: &'static std::ffi::CStr) -> PyResult<Py<PyAny>> {
    let table = Box::leak(Box::new(ApiTable {
        version: [major, 0],
        previous: std::ptr::null(),
        allocate: std::ptr::null(),
        managed_from_object: std::ptr::null(),
        managed_to_object: Some(make),
        tensor_from_object: Some(read),
        stream: std::ptr::null(),
    }));
    // SAFETY: a table and a name that stay.
    unsafe {
        let capsule = ffi::PyCapsule_New((&raw mut *table).cast(), name.as_ptr(), None);
        Ok(Bound::from_owned_ptr_or_err(py, capsule)?.unbind())
    }
}

fn api(py: Python<'_>) -> DlpackApi {
    DlpackApi::of(py.get_type::<FakeTensor>().as_any())
        .unwrap()
        .expect("it has a table")
}

#[test]
fn a_table_is_used_if_it_is_one_of_this_version() {
    attach(|py| {
        let class = |table: PyResult<Py<PyAny>>| {
            let class = py.import("types").unwrap().getattr("SimpleNamespace");
            let class = class.unwrap().call0().unwrap();
            let name = "__dlpack_c_exchange_api__";
            class.setattr(name, table.unwrap()).unwrap();
            class
        };
        let of = |class: &Bound<'_, PyAny>| DlpackApi::of(class).map(|api| api.is_some());
        let right = c"dlpack_exchange_api";
        assert!(!of(py.None().bind(py)).unwrap());
        assert!(of(&class(capsule(py, MAJOR, right))).unwrap());
        assert!(!of(&class(capsule(py, MAJOR + 1, right))).unwrap());
        assert!(of(&class(capsule(py, MAJOR, c"dlpack"))).is_err());
        assert!(of(&class(Ok(py.None()))).is_err());
        assert!(PyErr::take(py).is_none());
    });
}

#[test]
fn what_the_table_cannot_say_is_left_to_python() {
    run(cr#"
memory = bytearray(range(64))
plain = codec().pack
by_python = [("by python", [], b"")]

def travels_by_table(*args, **options):
    packed = plain(Tensor(memory, *args, **options))
    return b"by python" not in packed

assert travels_by_table("float32", [4, 4], [4, 1])
assert travels_by_table("uint8", [8], [1])
# A step of one element says nothing, and a size of 0 that there are none.
assert travels_by_table("float32", [1, 4], [99, 1])
assert travels_by_table("float32", [0, 4], [99, 7])
assert not travels_by_table("float32", [4, 2], [4, 1])
assert not travels_by_table("float32", [4], [1], device=2)
assert not travels_by_table("float32", [4], [1], is_neg=True)
assert not travels_by_table("int4", [4], [1])
# Memory that was freed.
assert not travels_by_table("uint8", [4], [1], first=-Tensor(memory, "uint8", [1], [1]).address % 2**64 + 8)
"#);
}

#[test]
fn an_object_that_is_no_tensor_is_refused_without_an_error_left_behind() {
    attach(|py| {
        let none = py.None().into_bound(py);
        assert!(api(py).describe(&none).unwrap().is_none());
        assert!(PyErr::take(py).is_none());
    });
}

#[test]
fn a_view_keeps_its_memory_until_it_is_dropped_in_any_thread() {
    run(cr#"
def is_free(memory):
    try:
        memory.append(0)
    except BufferError:
        return False
    memory.pop()
    return True

memory = bytearray(codec().plan([Tensor(bytes(range(12)), "float32", [3], [1])]).to_bytes())
[view] = codec().unpack_payload(memory)
assert view.to_bytes() == bytes(range(12))
assert not is_free(memory)
del view
assert is_free(memory)

# Several views of one payload, the last of which is dropped by another thread.
tensors = [Tensor(bytes([value] * 4), "uint8", [4], [1]) for value in range(3)]
memory = bytearray(codec().plan(tensors + tensors).to_bytes())
views = codec().unpack_payload(memory)
assert [view.to_bytes()[0] for view in views] == [0, 1, 2, 0, 1, 2]
assert views[0] is views[3]
while len(views) > 1:
    views.pop()
    assert not is_free(memory)
thread = threading.Thread(target=views.clear)
thread.start()
thread.join()
assert is_free(memory)

# The memory outlives the codec and the names for it.
view = codec().unpack_payload(bytearray(memory))[1]
gc.collect()
assert view.to_bytes() == bytes([1] * 4)
"#);
}

#[test]
fn a_view_that_cannot_be_made_is_an_error() {
    run(cr#"
payload = codec().plan([Tensor(bytes(12), "float32", [3], [1])]).to_bytes()
Tensor.refuse_views(True)
try:
    text = raised(ValueError, codec().unpack_payload, payload)
finally:
    Tensor.refuse_views(False)
assert "torch makes no tensor of a view" in text and "no views today" in text, text
"#);
}
