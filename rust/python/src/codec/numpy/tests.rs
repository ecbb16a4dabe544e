use pyo3::exceptions::PyValueError;
use pyo3::types::{PyBytes, PyDict, PyType};

use super::*;
use crate::buffer::BufferView;
use crate::test_support::{attach, run};

/// An array as numpy shows it to other extensions.
#[pyclass(frozen, name = "Array", module = "numpy")]
pub struct FakeArray {
    /// numpy's name of it, with its byte order.
    dtype: String,
    shape: Vec<isize>,
    strides: Vec<isize>,
    address: usize,
    _memory: Option<BufferView>,
}

/// What a capsule points to, and keeps. The interface is first, so that a pointer to the whole is one to it.
#[repr(C)]
struct Shown {
    interface: Interface,
    _array: Py<FakeArray>,
}

#[pymethods]
impl FakeArray {
    #[new]
    #[pyo3(signature = (shape, dtype, buffer = None, offset = 0, strides = None))]
    fn new(
        shape: Vec<isize>,
        dtype: String,
        buffer: Option<&Bound<'_, PyAny>>,
        offset: usize,
        strides: Option<Vec<isize>>,
    ) -> PyResult<Self> {
        let memory = buffer.map(BufferView::new).transpose()?;
        let item: isize = dtype[2..].parse()?;
        let dense = || {
            let sizes = (1..shape.len() + 1).map(|dim| shape[dim..].iter().product::<isize>());
            sizes.map(|size| size * item).collect()
        };
        Ok(Self {
            address: memory.as_ref().map_or(0, |memory| memory.as_ptr() as usize) + offset,
            strides: strides.unwrap_or_else(dense),
            shape,
            dtype,
            _memory: memory,
        })
    }

    #[classattr]
    #[pyo3(name = "DTYPES")]
    fn dtypes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dtypes = PyDict::new(py);
        for dtype in DTYPES {
            if let Some(name) = name(dtype) {
                dtypes.set_item(dtype.code, name)?;
            }
        }
        Ok(dtypes)
    }

    #[getter(__array_struct__)]
    fn array_struct<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let item: isize = this.dtype[2..].parse()?;
        let mut expected = item;
        let is_dense = this
            .shape
            .iter()
            .zip(&this.strides)
            .rev()
            .all(|(&size, &stride)| {
                let fits = stride == expected;
                expected *= size;
                fits
            });
        let swapped = this.dtype.starts_with('>');
        let shown = Box::new(Shown {
            interface: Interface {
                two: 2,
                nd: this.shape.len() as c_int,
                kind: this.dtype.as_bytes()[1] as c_char,
                itemsize: item as c_int,
                flags: if swapped { 0 } else { NOT_SWAPPED }
                    | if is_dense { C_CONTIGUOUS } else { 0 },
                shape: this.shape.as_ptr().cast_mut(),
                strides: this.strides.as_ptr().cast_mut(),
                data: this.address as *mut c_void,
                descr: std::ptr::null_mut(),
            },
            _array: slf.clone().unbind(),
        });
        // SAFETY: the capsule has no name and frees what it points to.
        unsafe {
            let shown = Box::into_raw(shown).cast();
            let capsule = ffi::PyCapsule_New(shown, std::ptr::null(), Some(free));
            Bound::from_owned_ptr_or_err(slf.py(), capsule)
        }
    }

    #[getter]
    fn shape(&self) -> Vec<isize> {
        self.shape.clone()
    }

    #[getter]
    fn dtype(&self) -> &str {
        &self.dtype
    }

    /// The elements in order.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let item: usize = self.dtype[2..].parse()?;
        let mut at = vec![self.address];
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let steps = |&at: &usize| (0..size).map(move |i| at.wrapping_add_signed(i * stride));
            at = at.iter().flat_map(steps).collect();
        }
        let mut bytes = Vec::new();
        for at in at {
            // SAFETY: an element of the array, whose memory is kept.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at as *const u8, item) });
        }
        Ok(PyBytes::new(py, &bytes))
    }
}

unsafe extern "C" fn free(capsule: *mut ffi::PyObject) {
    // SAFETY: the pointer that the capsule was made with, freed once.
    unsafe {
        let shown = ffi::PyCapsule_GetPointer(capsule, std::ptr::null());
        drop(Box::from_raw(shown.cast::<Shown>()));
    }
}

#[test]
fn only_a_capsule_of_numpys_is_read() {
    attach(|py| {
        let of = |value: Py<PyAny>| {
            let object = py.import("types").unwrap().getattr("SimpleNamespace");
            let object = object.unwrap().call0().unwrap();
            object.setattr("__array_struct__", value).unwrap();
            Array::of(&object).map(|array| array.is_some())
        };
        assert!(of(py.None()).is_err_and(|error| error.is_instance_of::<PyValueError>(py)));
        assert!(Array::of(py.None().bind(py)).is_err());
        // A capsule of another make, which has a name.
        // SAFETY: a pointer that is not read, and a name that stays.
        let named = unsafe {
            let capsule = ffi::PyCapsule_New(
                std::ptr::dangling_mut::<u8>().cast(),
                c"other".as_ptr(),
                None,
            );
            Bound::from_owned_ptr(py, capsule)
        };
        assert!(of(named.unbind()).is_err());
        let class = py.get_type::<PyType>();
        assert!(Array::of(class.as_any()).is_err());
    });
}

#[test]
fn arrays_travel_beside_the_message_and_in_it() {
    run(cr#"
memory = bytearray(range(96))
arrays = [
    Array([2, 3], "<f4", memory),
    # Backwards, with gaps, a transpose, one element, and none.
    Array([4], "<i2", memory, 40, [-8]),
    Array([3, 2], "|u1", memory, 1, [16, 5]),
    Array([3, 2], "<c16", memory, 0, [16, 48]),
    Array([], "<f8", memory, 8),
    Array([0, 3], "|b1"),
]
for pack, unpack in [(codec().pack, codec().unpack), (lambda o: codec().plan(o).to_bytes(), codec().unpack_payload)]:
    back = unpack(bytearray(pack(arrays)))
    for array, (came) in zip(arrays, back):
        if isinstance(came, tuple):
            # A message has room for contiguous ones; Python packs the others.
            assert came[:2] == ("revived", 10) and array in arrays[1:4], came
            continue
        assert (came.shape, came.dtype, came.to_bytes()) == (array.shape, array.dtype, array.to_bytes())
payload = bytearray(codec().plan(arrays).to_bytes())
assert all(isinstance(came, Array) for came in codec().unpack_payload(payload))
"#);
}

#[test]
fn dtypes_that_are_not_the_formats_go_by_python() {
    run(cr#"
for dtype in ("<U4", "<M8", "|V3", ">f4", "<f16"):
    for pack in (codec().pack, lambda array: codec().plan(array).to_bytes()):
        assert b"by python" in pack(Array([2], dtype, bytes(64))), dtype
"#);
}

#[test]
fn a_plan_keeps_the_arrays_that_it_will_read() {
    run(cr#"
memory = bytearray(range(64))
plan = codec().plan([Array([64], "|u1", memory)])
try:
    memory.clear()
except BufferError:
    pass
else:
    raise AssertionError("the plan let go of the array")
expected = bytes(range(64))
assert codec().unpack_payload(bytearray(plan.to_bytes()))[0].to_bytes() == expected
del plan
memory.clear()
"#);
}
