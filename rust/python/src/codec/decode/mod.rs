//! Turns msgpack with typed extensions into Python objects.
//!
//! Any bytes give a value or an error. The stack holds at most `MAX_NESTED` containers, and memory grows with the
//! bytes.

mod classes;

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PySet, PyString};
use pyo3::{ffi, intern};
use sglang_omni_payload::msgpack::{Malformed, Token, TokenReader};

use super::encode::MAX_DEPTH;
use super::key_cache::KeyCache;
use super::views::{self, Views};
use super::{Tools, code};

/// A value that is no container but is written as an extension, and its parts, nest a little deeper.
const MAX_NESTED: usize = MAX_DEPTH + 4;

// Boxed, because the frame of every container around the current value has room for one.
type Fault = Box<PyErr>;
type Read<'py> = Result<Bound<'py, PyAny>, Fault>;

pub struct Decoder<'a, 'py> {
    py: Python<'py>,
    tools: &'a Tools,
    /// Whether classes may be imported by name.
    trusted: bool,
    /// The tensors that came beside the message.
    views: Option<Views<'a, 'py>>,
    keys: Option<KeyCache>,
    depth: usize,
    /// The items that were read of the lists and tuples around the next value.
    items: Vec<Bound<'py, PyAny>>,
}

// These are out of line, so that they take no room in the frames of nested containers.
#[cold]
#[inline(never)]
fn refuse<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(PyValueError::new_err(reason.into())))
}

#[cold]
#[inline(never)]
fn raised(py: Python<'_>) -> Fault {
    Box::new(PyErr::fetch(py))
}

#[cold]
#[inline(never)]
fn malformed(reason: Malformed) -> Fault {
    Box::new(PyValueError::new_err(format!(
        "malformed message: {reason}"
    )))
}

/// Turns any exception that malformed bytes cause into a ValueError.
pub fn as_value_error(py: Python<'_>, error: PyErr) -> PyErr {
    if error.is_instance_of::<PyValueError>(py) || !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let kind = error.get_type(py);
    let kind = kind
        .name()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let said = PyValueError::new_err(format!("malformed message: {kind}: {}", error.value(py)));
    said.set_cause(py, Some(error));
    said
}

/// # Safety
/// `object` is a new reference, or null with an error set.
#[inline]
unsafe fn owned(py: Python<'_>, object: *mut ffi::PyObject) -> Read<'_> {
    // SAFETY: the caller's promise.
    unsafe { Bound::from_owned_ptr_or_opt(py, object) }.ok_or_else(|| raised(py))
}

#[inline]
fn text<'py>(py: Python<'py>, utf8: &[u8]) -> Result<Bound<'py, PyString>, Fault> {
    // SAFETY: bytes with their length, and a C string; a new str or null with an error.
    unsafe {
        let text = ffi::PyUnicode_DecodeUTF8(
            utf8.as_ptr().cast(),
            utf8.len() as ffi::Py_ssize_t,
            c"surrogatepass".as_ptr(),
        );
        Ok(owned(py, text)?.cast_into_unchecked())
    }
}

/// An interned str, as are the literals with which Python code looks keys up.
fn interned<'py>(py: Python<'py>, utf8: &[u8]) -> Result<Bound<'py, PyString>, Fault> {
    let mut text = text(py, utf8)?.into_ptr();
    // SAFETY: a str just made; the reference to it is exchanged for one to its interned equal.
    unsafe {
        ffi::PyUnicode_InternInPlace(&raw mut text);
        Ok(Bound::from_owned_ptr(py, text).cast_into_unchecked())
    }
}

impl<'a, 'py> Decoder<'a, 'py> {
    pub fn new(
        py: Python<'py>,
        tools: &'a Tools,
        trusted: bool,
        views: Option<Views<'a, 'py>>,
    ) -> Self {
        Self {
            py,
            tools,
            trusted,
            views,
            keys: None,
            depth: 0,
            items: Vec::new(),
        }
    }

    /// The value that `message` consists of. Raises a ValueError for malformed bytes.
    pub fn message(&mut self, message: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        self.keys = self.tools.keys.take();
        let value = self.alone(message);
        self.tools.keys.give_back(self.keys.take());
        value.map_err(|fault| as_value_error(self.py, *fault))
    }

    /// The value that `body` consists of.
    fn alone(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let value = self.value(&mut reader)?;
        finish(&reader)?;
        Ok(value)
    }

    fn value(&mut self, reader: &mut TokenReader<'_>) -> Read<'py> {
        match reader.next_token().map_err(malformed)? {
            Token::Str(utf8) => Ok(text(self.py, utf8)?.into_any()),
            Token::Int(value) => Ok(PyInt::new(self.py, value).into_any()),
            Token::Float(value) => Ok(PyFloat::new(self.py, value).into_any()),
            Token::Nil => Ok(self.py.None().into_bound(self.py)),
            Token::Bool(value) => Ok(PyBool::new(self.py, value).to_owned().into_any()),
            Token::Bin(bytes) => Ok(PyBytes::new(self.py, bytes).into_any()),
            Token::Map(len) => self.dict(reader, len),
            Token::Array(len) => self.list(reader, len),
            Token::Ext(code, body) => self.ext(code, body),
            Token::Uint(value) => Ok(PyInt::new(self.py, value).into_any()),
        }
    }

    // --- containers ---------------------------------------------------------------------------

    #[inline]
    fn deeper(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > MAX_NESTED {
            return refuse("nested too deeply");
        }
        Ok(())
    }

    #[inline(never)]
    fn list(&mut self, reader: &mut TokenReader<'_>, len: usize) -> Read<'py> {
        self.deeper()?;
        let start = self.collect(reader, len)?;
        // SAFETY: a new reference or null with an error.
        let list = unsafe { owned(self.py, ffi::PyList_New(len as isize))? };
        for (index, item) in self.items.drain(start..).enumerate() {
            // SAFETY: a list of that length, which no other code has seen yet; it takes over the item's reference.
            unsafe { ffi::PyList_SetItem(list.as_ptr(), index as isize, item.into_ptr()) };
        }
        self.depth -= 1;
        Ok(list)
    }

    /// Reads `len` values to the end of `items`; returns where they begin.
    ///
    /// A list or tuple is made only after all of its items: Python code may run to make an item, other threads run
    /// meanwhile, and they can find every container that exists (`gc.get_objects`).
    fn collect(&mut self, reader: &mut TokenReader<'_>, len: usize) -> Result<usize, Fault> {
        let start = self.items.len();
        for _ in 0..len {
            let item = self.value(reader)?;
            self.items.push(item);
        }
        Ok(start)
    }

    #[inline(never)]
    fn dict(&mut self, reader: &mut TokenReader<'_>, len: usize) -> Read<'py> {
        self.deeper()?;
        let dict = PyDict::new(self.py);
        for _ in 0..len {
            let key = match reader.next_token().map_err(malformed)? {
                Token::Str(utf8) => self.key(utf8)?,
                Token::Int(value) => PyInt::new(self.py, value).into_any(),
                Token::Ext(code, body) => self.ext(code, body)?,
                Token::Nil => self.py.None().into_bound(self.py),
                Token::Bool(value) => PyBool::new(self.py, value).to_owned().into_any(),
                Token::Float(value) => PyFloat::new(self.py, value).into_any(),
                Token::Bin(bytes) => PyBytes::new(self.py, bytes).into_any(),
                Token::Uint(value) => PyInt::new(self.py, value).into_any(),
                Token::Array(_) | Token::Map(_) => {
                    return refuse("malformed message: a list or a dict cannot be a key");
                }
            };
            dict.set_item(key, self.value(reader)?)?;
        }
        self.depth -= 1;
        Ok(dict.into_any())
    }

    #[inline]
    fn key(&mut self, utf8: &[u8]) -> Read<'py> {
        let (py, keys) = (self.py, self.keys.as_mut());
        let text = match keys {
            Some(keys) => keys.get(py, utf8, || interned(py, utf8))?,
            None => interned(py, utf8)?,
        };
        Ok(text.into_any())
    }

    fn tuple_of(&mut self, reader: &mut TokenReader<'_>, len: usize) -> Read<'py> {
        let start = self.collect(reader, len)?;
        // SAFETY: a new reference or null with an error.
        let tuple = unsafe { owned(self.py, ffi::PyTuple_New(len as isize))? };
        for (index, item) in self.items.drain(start..).enumerate() {
            // SAFETY: as for `list`.
            unsafe { ffi::PyTuple_SetItem(tuple.as_ptr(), index as isize, item.into_ptr()) };
        }
        Ok(tuple)
    }

    // --- extensions ---------------------------------------------------------------------------

    // Only dispatches: its frame is on the stack once for every level.
    #[inline(never)]
    fn ext(&mut self, code: i8, body: &[u8]) -> Read<'py> {
        self.deeper()?;
        let value = match code {
            code::TUPLE => self.tuple(body),
            code::DATACLASS => self.dataclass(body),
            code::TENSOR_REF => self.reference(body),
            code::ENUM => self.member(body),
            code::NAMEDTUPLE => self.namedtuple(body),
            code::SET => self.set(body),
            code::FROZENSET => self.frozenset(body),
            code::BIGINT => self.bigint(body),
            code::COMPLEX => self.complex(body),
            code::ARRAY | code::TENSOR => self.in_place(code, body),
            code::SCALAR | code::NUMPY_DTYPE | code::SIZE => self.by_python(code, body),
            code::TORCH_DTYPE | code::DEVICE => self.by_python_flat(code, body),
            unknown => refuse(format!("unknown extension type {unknown}")),
        };
        self.depth -= 1;
        value
    }

    #[inline(never)]
    fn tuple(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let len = array(&mut reader)?;
        let tuple = self.tuple_of(&mut reader, len)?;
        finish(&reader)?;
        Ok(tuple)
    }

    #[inline(never)]
    fn set(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let set = PySet::empty(self.py)?;
        for _ in 0..array(&mut reader)? {
            set.add(self.value(&mut reader)?)?;
        }
        finish(&reader)?;
        Ok(set.into_any())
    }

    #[inline(never)]
    fn frozenset(&mut self, body: &[u8]) -> Read<'py> {
        let items = self.tuple(body)?;
        // SAFETY: any iterable will do; a new reference or null with an error.
        unsafe {
            let set = ffi::PyFrozenSet_New(items.as_ptr());
            owned(self.py, set)
        }
    }

    #[inline(never)]
    fn bigint(&self, body: &[u8]) -> Read<'py> {
        let signed = PyDict::new(self.py);
        signed.set_item(intern!(self.py, "signed"), true)?;
        Ok(self.py.get_type::<PyInt>().call_method(
            intern!(self.py, "from_bytes"),
            (PyBytes::new(self.py, body), intern!(self.py, "little")),
            Some(&signed),
        )?)
    }

    #[inline(never)]
    fn complex(&self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let (2, Ok(Token::Float(real)), Ok(Token::Float(imaginary))) = (
            array(&mut reader)?,
            reader.next_token(),
            reader.next_token(),
        ) else {
            return refuse("malformed message: not the two parts of a complex number");
        };
        finish(&reader)?;
        Ok(PyComplex::from_doubles(self.py, real, imaginary).into_any())
    }

    #[inline(never)]
    fn reference(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let number = reader.next_token().map_err(malformed)?;
        finish(&reader)?;
        match (&mut self.views, number) {
            (Some(views), Token::Int(number)) => Ok(views.get(self.py, self.tools, number)?),
            _ => refuse(format!(
                "the message refers to a tensor ({number:?}) that did not come with it"
            )),
        }
    }

    #[inline(never)]
    fn in_place(&mut self, code: i8, body: &[u8]) -> Read<'py> {
        match views::in_place(self.py, self.tools, code, body)? {
            Some(value) => Ok(value),
            None => self.by_python(code, body),
        }
    }

    #[inline(never)]
    fn by_python(&mut self, code: i8, body: &[u8]) -> Read<'py> {
        let wire = self.alone(body)?;
        Ok(self.tools.revive.bind(self.py).call1((code, wire))?)
    }

    #[inline(never)]
    fn by_python_flat(&self, code: i8, body: &[u8]) -> Read<'py> {
        let wire = PyBytes::new(self.py, body);
        Ok(self.tools.revive.bind(self.py).call1((code, wire))?)
    }
}

fn array(reader: &mut TokenReader<'_>) -> Result<usize, Fault> {
    match reader.next_token().map_err(malformed)? {
        Token::Array(len) => Ok(len),
        _ => refuse("malformed message: an extension of another make"),
    }
}

fn finish(reader: &TokenReader<'_>) -> Result<(), Fault> {
    reader.finish().map_err(malformed)
}
