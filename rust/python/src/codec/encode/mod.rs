//! Walks over an object, writes it as msgpack and notes the tensors in it.

mod tensors;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use pyo3::{ffi, intern};
use sglang_omni_payload::msgpack::{
    begin_ext, end_ext, write_array, write_bin, write_bool, write_ext, write_float, write_int,
    write_map, write_nil, write_str, write_uint,
};

use super::pack_error::{PackError, PackResult, Step};
use super::rows::Rows;
use super::types::{ClassKind, Field};
use super::{Tools, code};
use crate::buffer::BufferView;

/// The deepest nesting of containers. Each takes some hundred bytes of stack, in the sender and in the receiver.
pub const MAX_DEPTH: usize = 500;

pub struct Walk<'a, 'py> {
    py: Python<'py>,
    tools: &'a Tools,
    pub out: Vec<u8>,
    /// Addresses of the containers around the current value.
    above: Vec<usize>,
    /// Collects the tensors, to which the message then refers by number. Without it they are written into the message.
    pub rows: Option<Rows>,
}

impl<'a, 'py> Walk<'a, 'py> {
    pub fn new(py: Python<'py>, tools: &'a Tools, rows: Option<Rows>) -> Self {
        Self {
            py,
            tools,
            out: Vec::with_capacity(512),
            above: Vec::with_capacity(16),
            rows,
        }
    }

    pub fn value(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        self.write(object).map_err(|error| error.by(object))
    }

    /// Types must match exactly: a subclass would come back as its base class.
    fn write(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        let class = object.get_type_ptr();
        if class == &raw mut ffi::PyUnicode_Type {
            self.text(object)
        } else if class == &raw mut ffi::PyDict_Type {
            self.dict(object)
        } else if class == &raw mut ffi::PyLong_Type {
            self.int(object)
        } else if class == &raw mut ffi::PyFloat_Type {
            // SAFETY: it is a float.
            write_float(&mut self.out, unsafe {
                ffi::PyFloat_AsDouble(object.as_ptr())
            });
            Ok(())
        } else if class == &raw mut ffi::PyList_Type {
            self.list(object)
        } else if object.is_none() {
            write_nil(&mut self.out);
            Ok(())
        } else if class == &raw mut ffi::PyBool_Type {
            // SAFETY: True is a singleton that lives as long as the interpreter.
            write_bool(&mut self.out, object.as_ptr() == unsafe { ffi::Py_True() });
            Ok(())
        } else if class == &raw mut ffi::PyTuple_Type {
            self.tuple(object)
        } else if class == &raw mut ffi::PyBytes_Type
            || class == &raw mut ffi::PyByteArray_Type
            || class == &raw mut ffi::PyMemoryView_Type
        {
            self.bytes(object)
        } else if class == &raw mut ffi::PySet_Type {
            self.set(object, code::SET)
        } else if class == &raw mut ffi::PyFrozenSet_Type {
            self.set(object, code::FROZENSET)
        } else if class == &raw mut ffi::PyComplex_Type {
            self.complex(object)
        } else {
            self.other(object)
        }
    }

    fn text(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        let mut len = 0;
        // SAFETY: it is a str, which keeps its UTF-8 form as long as it lives.
        let utf8 = unsafe { ffi::PyUnicode_AsUTF8AndSize(object.as_ptr(), &raw mut len) };
        if utf8.is_null() {
            drop(PyErr::take(self.py));
            return self.surrogates(object);
        }
        // SAFETY: as above.
        let utf8 = unsafe { std::slice::from_raw_parts(utf8.cast::<u8>(), len as usize) };
        Ok(write_str(&mut self.out, utf8)?)
    }

    #[cold]
    #[inline(never)]
    fn surrogates(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        // SAFETY: a str and two C strings.
        let bytes = unsafe {
            let encoded = ffi::PyUnicode_AsEncodedString(
                object.as_ptr(),
                c"utf-8".as_ptr(),
                c"surrogatepass".as_ptr(),
            );
            Bound::from_owned_ptr_or_err(self.py, encoded)?
        };
        let bytes = bytes.cast::<PyBytes>().map_err(PyErr::from)?;
        Ok(write_str(&mut self.out, bytes.as_bytes())?)
    }

    fn int(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        let mut overflow = 0;
        // SAFETY: it is an int.
        let value =
            unsafe { ffi::PyLong_AsLongLongAndOverflow(object.as_ptr(), &raw mut overflow) };
        if overflow == 0 {
            write_int(&mut self.out, value);
            return Ok(());
        }
        self.large_int(object, overflow > 0)
    }

    #[inline(never)]
    fn large_int(&mut self, object: &Bound<'py, PyAny>, positive: bool) -> PackResult {
        if positive && let Ok(value) = object.extract::<u64>() {
            write_uint(&mut self.out, value);
            return Ok(());
        }
        let bits: usize = object
            .call_method0(intern!(self.py, "bit_length"))?
            .extract()?;
        let signed = pyo3::types::PyDict::new(self.py);
        signed.set_item(intern!(self.py, "signed"), true)?;
        let bytes = object.call_method(
            intern!(self.py, "to_bytes"),
            (bits / 8 + 1, intern!(self.py, "little")),
            Some(&signed),
        )?;
        let bytes = bytes.cast::<PyBytes>().map_err(PyErr::from)?;
        Ok(write_ext(&mut self.out, code::BIGINT, bytes.as_bytes())?)
    }

    #[inline(never)]
    fn complex(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        let ext = begin_ext(&mut self.out, code::COMPLEX);
        write_array(&mut self.out, 2)?;
        // SAFETY: it is a complex.
        unsafe {
            write_float(&mut self.out, ffi::PyComplex_RealAsDouble(object.as_ptr()));
            write_float(&mut self.out, ffi::PyComplex_ImagAsDouble(object.as_ptr()));
        }
        Ok(end_ext(&mut self.out, ext)?)
    }

    #[inline(never)]
    fn bytes(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        let view = BufferView::new(object)
            .map_err(|error| PyValueError::new_err(format!("its bytes cannot be read: {error}")))?;
        // SAFETY: copied at once, with the interpreter's lock.
        Ok(write_bin(&mut self.out, unsafe { view.as_slice() })?)
    }

    // --- containers ---------------------------------------------------------------------------

    #[inline]
    fn enter(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        let address = object.as_ptr() as usize;
        if self.above.contains(&address) {
            return Err(PackError::cyclic(object));
        }
        if self.above.len() >= MAX_DEPTH {
            return Err(PackError::too_deep());
        }
        self.above.push(address);
        Ok(())
    }

    #[inline(never)]
    fn dict(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        self.enter(object)?;
        // SAFETY: it is a dict.
        let mut left = unsafe { ffi::PyDict_Size(object.as_ptr()) };
        write_map(&mut self.out, left as usize)?;
        let mut position = 0;
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        loop {
            // SAFETY: it is a dict, and PyDict_Next checks its position each time. The borrowed objects are owned
            // before any other code runs.
            let (key, value) = unsafe {
                let next = ffi::PyDict_Next(
                    object.as_ptr(),
                    &raw mut position,
                    &raw mut key,
                    &raw mut value,
                );
                if next == 0 {
                    break;
                }
                (
                    Bound::from_borrowed_ptr(self.py, key),
                    Bound::from_borrowed_ptr(self.py, value),
                )
            };
            left -= 1;
            if left < 0 {
                return Err(PackError::changed());
            }
            self.value(&key)
                .map_err(|error| error.at(Step::Key(key.clone().unbind())))?;
            self.value(&value)
                .map_err(|error| error.at(Step::Value(key.unbind())))?;
        }
        if left != 0 {
            return Err(PackError::changed());
        }
        self.above.pop();
        Ok(())
    }

    #[inline(never)]
    fn list(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        self.enter(object)?;
        // SAFETY: it is a list.
        let len = || unsafe { ffi::PyList_Size(object.as_ptr()) };
        let started = len();
        write_array(&mut self.out, started as usize)?;
        for index in 0..started {
            if len() != started {
                return Err(PackError::changed());
            }
            // SAFETY: it is a list of that length, and the borrowed item is owned at once.
            let item = unsafe {
                Bound::from_borrowed_ptr(self.py, ffi::PyList_GetItem(object.as_ptr(), index))
            };
            self.value(&item)
                .map_err(|error| error.at(Step::Index(index as usize)))?;
        }
        if len() != started {
            return Err(PackError::changed());
        }
        self.above.pop();
        Ok(())
    }

    #[inline(never)]
    fn tuple(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        self.enter(object)?;
        // SAFETY: it is a tuple.
        let tuple = unsafe { object.cast_unchecked::<PyTuple>() };
        let ext = begin_ext(&mut self.out, code::TUPLE);
        write_array(&mut self.out, tuple.len())?;
        for (index, item) in tuple.iter_borrowed().enumerate() {
            self.value(&item)
                .map_err(|error| error.at(Step::Index(index)))?;
        }
        end_ext(&mut self.out, ext)?;
        self.above.pop();
        Ok(())
    }

    #[inline(never)]
    fn set(&mut self, object: &Bound<'py, PyAny>, code: i8) -> PackResult {
        self.enter(object)?;
        let ext = begin_ext(&mut self.out, code);
        let mut left = object.len()?;
        write_array(&mut self.out, left)?;
        for item in object.try_iter()? {
            let item = item?;
            left = left.checked_sub(1).ok_or_else(PackError::changed)?;
            self.value(&item)
                .map_err(|error| error.at(Step::Member(item.unbind())))?;
        }
        if left != 0 {
            return Err(PackError::changed());
        }
        end_ext(&mut self.out, ext)?;
        self.above.pop();
        Ok(())
    }

    // --- classes ------------------------------------------------------------------------------

    #[inline(never)]
    fn other(&mut self, object: &Bound<'py, PyAny>) -> PackResult {
        let kind = self.tools.classes.kind_of(object)?;
        match &*kind {
            ClassKind::Dataclass { head, fields } => self.dataclass(object, head, fields),
            ClassKind::Enum { head, attribute } => {
                let ext = begin_ext(&mut self.out, code::ENUM);
                self.out.extend_from_slice(head);
                self.value(&object.getattr(attribute)?)?;
                Ok(end_ext(&mut self.out, ext)?)
            }
            ClassKind::Namedtuple { name, fields } => self.namedtuple(object, name, fields),
            ClassKind::Tensor { plain, encode } => {
                let api = if *plain {
                    self.tools.torch(self.py)?
                } else {
                    None
                };
                self.tensor(object, api, encode)
            }
            ClassKind::Array { encode } => self.array(object, encode),
            ClassKind::Other { encode } => self.by_python(object, encode),
        }
    }

    #[inline(never)]
    fn dataclass(
        &mut self,
        object: &Bound<'py, PyAny>,
        head: &[u8],
        fields: &[Field],
    ) -> PackResult {
        self.enter(object)?;
        let ext = begin_ext(&mut self.out, code::DATACLASS);
        self.out.extend_from_slice(head);
        let counted = self.out.len();
        // The head is written for all fields; if some are absent, their count is filled in below.
        write_map(&mut self.out, fields.len())?;
        let mut there = 0;
        for field in fields {
            if let Some(value) = object.getattr_opt(&field.name)? {
                there += 1;
                self.out.extend_from_slice(&field.key);
                self.value(&value)
                    .map_err(|error| error.at(Step::Field(field.name.clone_ref(self.py))))?;
            }
        }
        if there != fields.len() {
            match fields.len() {
                ..=15 => self.out[counted] = 0x80 | there as u8,
                16..=0xffff => self.out[counted + 1..counted + 3]
                    .copy_from_slice(&(there as u16).to_be_bytes()),
                _ => self.out[counted + 1..counted + 5]
                    .copy_from_slice(&(there as u32).to_be_bytes()),
            }
        }
        end_ext(&mut self.out, ext)?;
        self.above.pop();
        Ok(())
    }

    #[inline(never)]
    fn namedtuple(
        &mut self,
        object: &Bound<'py, PyAny>,
        name: &[u8],
        fields: &[Field],
    ) -> PackResult {
        self.enter(object)?;
        // SAFETY: a namedtuple's class is a subclass of tuple.
        let tuple = unsafe { object.cast_unchecked::<PyTuple>() };
        let ext = begin_ext(&mut self.out, code::NAMEDTUPLE);
        write_array(&mut self.out, 1 + tuple.len())?;
        self.out.extend_from_slice(name);
        for (index, item) in tuple.iter_borrowed().enumerate() {
            self.value(&item).map_err(|error| {
                error.at(fields.get(index).map_or(Step::Index(index), |field| {
                    Step::Field(field.name.clone_ref(self.py))
                }))
            })?;
        }
        end_ext(&mut self.out, ext)?;
        self.above.pop();
        Ok(())
    }

    /// Packs what `encode` returns: an extension's code, and its body as bytes or as an object to pack.
    #[inline(never)]
    fn by_python(&mut self, object: &Bound<'py, PyAny>, encode: &Py<PyAny>) -> PackResult {
        let parts = encode.bind(self.py).call1((object,))?;
        let (code, body): (i8, Bound<'py, PyAny>) = parts.extract()?;
        if let Ok(bytes) = body.cast_exact::<PyBytes>() {
            return Ok(write_ext(&mut self.out, code, bytes.as_bytes())?);
        }
        let ext = begin_ext(&mut self.out, code);
        self.value(&body)?;
        Ok(end_ext(&mut self.out, ext)?)
    }
}
