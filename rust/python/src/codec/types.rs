//! How the codec writes and builds instances of each Python class. `proto/codec.py` is asked once per class.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use sglang_omni_payload::msgpack::{write_array, write_str};

/// How instances of a class are written.
pub enum ClassKind {
    /// As a member's name, or as its value if `attribute` is `_value_`.
    Enum {
        head: Vec<u8>,
        attribute: Py<PyString>,
    },
    Dataclass {
        head: Vec<u8>,
        fields: Vec<Field>,
    },
    Namedtuple {
        name: Vec<u8>,
        fields: Vec<Field>,
    },
    Array {
        encode: Py<PyAny>,
    },
    /// `plain` if the class adds no state to torch.Tensor.
    Tensor {
        plain: bool,
        encode: Py<PyAny>,
    },
    /// As `encode` returns it: an extension's code and body.
    Other {
        encode: Py<PyAny>,
    },
}

pub struct Field {
    pub name: Py<PyString>,
    /// The name as msgpack.
    pub key: Vec<u8>,
    utf8_len: usize,
}

impl Field {
    fn new(name: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            key: text(name)?,
            utf8_len: name.extract::<&str>()?.len(),
            name: interned(name)?,
        })
    }

    pub fn utf8(&self) -> &[u8] {
        &self.key[self.key.len() - self.utf8_len..]
    }
}

impl ClassKind {
    /// From the tuple that `describe` of `proto/codec.py` returns: the kind's name and its parts.
    fn from_description(described: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let kind: String = described.get_item(0)?.extract()?;
        let part = |index| described.get_item(index);
        Ok(match kind.as_str() {
            "enum" => Self::Enum {
                head: head(&part(1)?)?,
                attribute: interned(&part(2)?)?,
            },
            "dataclass" => Self::Dataclass {
                head: head(&part(1)?)?,
                fields: fields(&part(2)?)?,
            },
            "namedtuple" => Self::Namedtuple {
                name: text(&part(1)?)?,
                fields: fields(&part(2)?)?,
            },
            "array" => Self::Array {
                encode: part(1)?.unbind(),
            },
            "tensor" => Self::Tensor {
                plain: part(1)?.extract()?,
                encode: part(2)?.unbind(),
            },
            "other" => Self::Other {
                encode: part(1)?.unbind(),
            },
            unknown => {
                return Err(PyRuntimeError::new_err(format!(
                    "no such kind of class: {unknown}"
                )));
            }
        })
    }
}

/// The beginning of an extension's body of two elements, the first of which is the class's name.
fn head(name: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut out = Vec::new();
    write_array(&mut out, 2).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    out.extend_from_slice(&text(name)?);
    Ok(out)
}

fn text(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut out = Vec::new();
    write_str(&mut out, value.extract::<&str>()?.as_bytes())
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(out)
}

fn fields(names: &Bound<'_, PyAny>) -> PyResult<Vec<Field>> {
    names.try_iter()?.map(|name| Field::new(&name?)).collect()
}

fn interned(name: &Bound<'_, PyAny>) -> PyResult<Py<PyString>> {
    Ok(PyString::intern(name.py(), name.extract()?).unbind())
}

/// A class that messages may name, as `find` of `proto/codec.py` describes it.
pub struct FoundClass {
    pub class: Py<PyType>,
    /// An enum's members by name.
    pub members: Option<Py<PyDict>>,
    /// Whether it is an enum whose members are made from values.
    pub is_flag: bool,
    /// A dataclass's fields in the order in which they are written, then its class variables.
    pub fields: Option<Vec<Field>>,
    /// A namedtuple's number of fields.
    pub arity: Option<usize>,
}

type FoundParts<'py> = (
    Bound<'py, PyType>,
    Option<Bound<'py, PyDict>>,
    bool,
    Option<Bound<'py, PyTuple>>,
    Option<usize>,
);

/// By the class's address. The class is kept, so that no other class gets the address.
type Written = HashMap<usize, (Py<PyType>, Arc<ClassKind>), AddressHash>;

/// The classes seen so far, for writing and for reading.
pub struct Classes {
    describe: Py<PyAny>,
    find: Py<PyAny>,
    written: Mutex<Written>,
    read: Mutex<HashMap<Vec<u8>, Arc<FoundClass>>>,
}

impl Classes {
    pub fn new(describe: Py<PyAny>, find: Py<PyAny>) -> Self {
        Self {
            describe,
            find,
            written: Mutex::default(),
            read: Mutex::default(),
        }
    }

    /// How an object is written. Raises what `describe` raises for a class that cannot be encoded.
    #[inline]
    pub fn kind_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Arc<ClassKind>> {
        let address = object.get_type_ptr() as usize;
        if let Some((_, kind)) = lock(&self.written).get(&address) {
            return Ok(Arc::clone(kind));
        }
        self.meet(&object.get_type())
    }

    #[cold]
    fn meet(&self, class: &Bound<'_, PyType>) -> PyResult<Arc<ClassKind>> {
        let described = self.describe.bind(class.py()).call1((class,))?;
        let kind = Arc::new(ClassKind::from_description(described.cast::<PyTuple>()?)?);
        let entry = (class.clone().unbind(), Arc::clone(&kind));
        let _replaced = lock(&self.written).insert(class.as_ptr() as usize, entry);
        Ok(kind)
    }

    /// The class of that name, which must be registered here unless `trusted`.
    pub fn named(&self, py: Python<'_>, name: &[u8], trusted: bool) -> PyResult<Arc<FoundClass>> {
        if let Some(found) = lock(&self.read).get(name) {
            return Ok(Arc::clone(found));
        }
        let found = self
            .find
            .bind(py)
            .call1((String::from_utf8_lossy(name), trusted))?;
        let (class, members, is_flag, names, arity): FoundParts<'_> = found.extract()?;
        let found = Arc::new(FoundClass {
            class: class.unbind(),
            members: members.map(Bound::unbind),
            is_flag,
            fields: names.map(|names| fields(&names)).transpose()?,
            arity,
        });
        let _replaced = lock(&self.read).insert(name.to_vec(), Arc::clone(&found));
        Ok(found)
    }

    /// Forgets which class each name stands for.
    pub fn forget_names(&self) {
        drop(std::mem::take(&mut *lock(&self.read)));
    }
}

/// Locks a table. Callers must not hold the lock while Python code may run, for example when a class is dropped.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub type AddressHash = BuildHasherDefault<AddressHasher>;

/// Hashes addresses of objects, whose low bits are all alike.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(usize::from(byte));
        }
    }

    fn write_usize(&mut self, value: usize) {
        let mixed = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
