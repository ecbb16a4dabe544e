//! What the tests run Python code with: this crate's module as `core`, a codec, and stand-ins for torch's and numpy's
//! classes, so that the tests need an interpreter and nothing else.

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::codec::{FakeArray, FakeTensor};

static SCOPE: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

static TURN: Mutex<()> = Mutex::new(());

/// Attaches to the interpreter while no other test is: there is one for all of them, and a test that holds each of its
/// objects would make CPython fail in the others.
pub fn attach<T>(test: impl FnOnce(Python<'_>) -> T) -> T {
    // A test that failed left nothing that the next depends on.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Python::attach(test)
}

/// Runs Python code; what it raises fails the test.
pub fn run(code: &CStr) {
    attach(|py| drop(run_in(py, code)));
}

/// The same, and returns the names that the code defined.
pub fn run_in<'py>(py: Python<'py>, code: &CStr) -> Bound<'py, PyDict> {
    let scope = scope(py).copy().expect("a dict");
    if let Err(error) = py.run(code, Some(&scope), None) {
        let at = error.traceback(py).and_then(|at| at.format().ok());
        panic!("{}{error}", at.unwrap_or_default());
    }
    scope
}

/// Names that every piece of code begins with.
fn scope(py: Python<'_>) -> &Bound<'_, PyDict> {
    let make = || -> PyResult<Py<PyDict>> {
        let scope = PyDict::new(py);
        scope.set_item("core", pyo3::wrap_pymodule!(crate::_core)(py))?;
        scope.set_item("Tensor", py.get_type::<FakeTensor>())?;
        scope.set_item("Array", py.get_type::<FakeArray>())?;
        py.run(PRELUDE, Some(&scope), None)?;
        Ok(scope.unbind())
    };
    SCOPE
        .get_or_init(py, || make().expect("the prelude runs"))
        .bind(py)
}

const PRELUDE: &CStr = cr#"
import collections, dataclasses, enum, gc, sys, threading, types

class Color(enum.Enum):
    RED = 1
    GREEN = 2

class Access(enum.Flag):
    READ = 1
    WRITE = 2

@dataclasses.dataclass
class Point:
    x: object = None
    y: object = None

Pair = collections.namedtuple("Pair", "left right")

class Raw:
    """Travels as the extension that it is made with."""
    def __init__(self, code, body):
        self.code, self.body = code, body

class Stranger:
    pass

TYPES = {cls.__name__: cls for cls in (Color, Access, Point, Pair)}

# What torch is asked for where 8 bits may be fewer.
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].int4 = "int4"

def describe(cls):
    if cls is Tensor:
        return "tensor", True, lambda tensor: (12, ["by python", [], b""])
    if cls is Array:
        return "array", lambda array: (10, ["by python", [], b""])
    if cls is Raw:
        return "other", lambda raw: (raw.code, raw.body)
    if issubclass(cls, enum.Enum):
        return "enum", cls.__name__, "_value_" if issubclass(cls, enum.Flag) else "_name_"
    if dataclasses.is_dataclass(cls):
        return "dataclass", cls.__name__, tuple(field.name for field in dataclasses.fields(cls))
    if issubclass(cls, tuple):
        return "namedtuple", cls.__name__, cls._fields
    raise TypeError(f"{cls.__name__} cannot be encoded")

def find(name, trusted):
    if name not in TYPES:
        raise ValueError(f"the type {name!r} is not registered")
    cls = TYPES[name]
    return (
        cls,
        dict(cls.__members__) if issubclass(cls, enum.Enum) else None,
        issubclass(cls, enum.Flag),
        tuple(cls.__dataclass_fields__) if dataclasses.is_dataclass(cls) else None,
        len(cls._fields) if issubclass(cls, tuple) else None,
    )

def codec(**changes):
    tools = dict(
        describe=describe,
        find=find,
        revive=lambda code, body: ("revived", code, body),
        load_torch=lambda: Tensor,
        describe_tensor=lambda tensor: None,
        view_tensor=lambda *view: ("viewed", *view[1:]),
        gather=None,
        ndarray=Array,
        numpy_dtypes=Array.DTYPES,
    )
    return core.Codec(**(tools | changes))

def raised(kind, call, *args, **options):
    """The text of the error that a call raises, which is of that kind."""
    try:
        call(*args, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")
"#;
