//! msgpack with typed extensions into Python objects.
//!
//! Total: whatever the bytes are, the result is a value or an error, the stack grows with at most
//! `MAX_NESTED` containers, and memory with the bytes.

use std::sync::Arc;

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PySet, PyString};
use pyo3::{ffi, intern};
use sglang_omni_payload::msgpack::{Malformed, Token, TokenReader};

use super::encode::MAX_DEPTH;
use super::key_cache::KeyCache;
use super::types::{Field, FoundClass};
use super::views::{self, Views};
use super::{Tools, code};

/// What cannot hold anything but is written as an extension, and its parts, nest a little deeper.
const MAX_NESTED: usize = MAX_DEPTH + 4;

// Boxed, because every container on the way in has room for one on the stack.
type Fault = Box<PyErr>;
type Read<'py> = Result<Bound<'py, PyAny>, Fault>;

pub struct Decoder<'a, 'py> {
    py: Python<'py>,
    tools: &'a Tools,
    /// Whether classes may be imported by name.
    trusted: bool,
    /// Tensors that came beside the message.
    views: Option<Views<'a, 'py>>,
    keys: Option<KeyCache>,
    depth: usize,
    /// What has been read of the lists and tuples around the next value.
    items: Vec<Bound<'py, PyAny>>,
}

// Out of line, so that they take no room in the frames of what may nest.
#[cold]
#[inline(never)]
fn refuse<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(PyValueError::new_err(reason.into())))
}

#[cold]
#[inline(never)]
fn refuse_class<T>(found: &FoundClass, what: &str) -> Result<T, Fault> {
    refuse(format!("{} is {what}", found.class))
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

/// Whatever malformed bytes provoke is reported as one kind of error.
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

/// As the literals are that a key will be looked up by.
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

    /// The one value that `message` is.
    pub fn message(&mut self, message: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        self.keys = self.tools.keys.take();
        let value = self.alone(message);
        self.tools.keys.give_back(self.keys.take());
        value.map_err(|fault| as_value_error(self.py, *fault))
    }

    /// The one value that `body` is.
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
            // SAFETY: a list of that length, which no other code has seen yet, and the item's reference passes on.
            unsafe { ffi::PyList_SetItem(list.as_ptr(), index as isize, item.into_ptr()) };
        }
        self.depth -= 1;
        Ok(list)
    }

    /// Reads `len` values to the end of `items`; returns where they begin.
    ///
    /// A list or tuple is made when all that goes into it is there: what makes the items may be Python code, and
    /// other threads run meanwhile, who find every container there is (`gc.get_objects`).
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

    // Only chooses: its frame is on the stack once for every level.
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

    // --- classes ------------------------------------------------------------------------------

    #[inline(never)]
    fn class(&self, reader: &mut TokenReader<'_>) -> Result<Arc<FoundClass>, Fault> {
        match reader.next_token().map_err(malformed)? {
            Token::Str(name) => Ok(self.tools.classes.named(self.py, name, self.trusted)?),
            other => refuse(format!("a type's name must be a str, got {other:?}")),
        }
    }

    #[inline(never)]
    fn dataclass(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let len = array(&mut reader)?;
        let found = self.class(&mut reader)?;
        let (2, Some(fields), Token::Map(len)) =
            (len, &found.fields, reader.next_token().map_err(malformed)?)
        else {
            return refuse_class(&found, "no dataclass of such fields");
        };
        // The fields are set as they were: __init__ and __post_init__ ran at the sender.
        // SAFETY: a callable, its argument and the end of the list.
        let object = unsafe {
            let object = ffi::PyObject_CallFunctionObjArgs(
                self.tools.new_object.as_ptr(),
                found.class.as_ptr(),
                std::ptr::null_mut::<ffi::PyObject>(),
            );
            owned(self.py, object)?
        };
        for index in 0..len {
            let field = field(
                &found,
                fields,
                index,
                reader.next_token().map_err(malformed)?,
            )?;
            let value = self.value(&mut reader)?;
            // SAFETY: three live objects. As object.__setattr__, whatever the class defines.
            let set = unsafe {
                ffi::PyObject_GenericSetAttr(object.as_ptr(), field.name.as_ptr(), value.as_ptr())
            };
            if set != 0 {
                return Err(raised(self.py));
            }
        }
        finish(&reader)?;
        Ok(object)
    }

    #[inline(never)]
    fn member(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let len = array(&mut reader)?;
        let found = self.class(&mut reader)?;
        let (2, Some(members)) = (len, &found.members) else {
            return refuse_class(&found, "no enum");
        };
        let member = self.value(&mut reader)?;
        finish(&reader)?;
        if found.is_flag {
            return Ok(found.class.bind(self.py).call1((member,))?);
        }
        match members.bind(self.py).get_item(&member)? {
            Some(member) => Ok(member),
            None => refuse(format!("{} has no member {member:?}", found.class)),
        }
    }

    #[inline(never)]
    fn namedtuple(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let len = array(&mut reader)?;
        let found = self.class(&mut reader)?;
        if len == 0 || found.arity != Some(len - 1) {
            return refuse_class(&found, "no namedtuple of so many fields");
        }
        let values = self.tuple_of(&mut reader, len - 1)?;
        finish(&reader)?;
        self.named(&found, &values)
    }

    #[inline(never)]
    fn named(&self, found: &FoundClass, values: &Bound<'py, PyAny>) -> Read<'py> {
        let class = found.class.bind(self.py);
        Ok(self.tools.new_tuple.bind(self.py).call1((class, values))?)
    }
}

/// The field that a name stands for. They come in the order of the class, if need be with gaps.
#[inline]
fn field<'a>(
    found: &FoundClass,
    fields: &'a [Field],
    index: usize,
    name: Token<'_>,
) -> Result<&'a Field, Fault> {
    let Token::Str(name) = name else {
        return refuse_class(found, "no class with fields of such names");
    };
    match fields.get(index) {
        Some(field) if field.utf8() == name => Ok(field),
        _ => match fields.iter().find(|field| field.utf8() == name) {
            Some(field) => Ok(field),
            None => refuse_class(found, &format!("no class with a field {name:?}")),
        },
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
