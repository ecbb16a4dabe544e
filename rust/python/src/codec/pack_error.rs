//! The error that says why an object cannot be packed, and at which place in it.
//!
//! The error collects the path to its cause while it passes up through the containers, so that the path costs nothing
//! unless something fails.

use std::fmt::Write;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use sglang_omni_payload::msgpack::TooLong;

pub struct PackError(Box<Inner>);

struct Inner {
    cause: Cause,
    /// The path, from the cause upwards.
    steps: Vec<Step>,
}

enum Cause {
    /// An exception whose object is not known yet.
    Raised(PyErr),
    Unencodable(PyErr, Py<PyType>),
    Cyclic(Py<PyType>),
    TooDeep,
}

/// One step from a container to something in it.
pub enum Step {
    Index(usize),
    Value(Py<PyAny>),
    Key(Py<PyAny>),
    Member(Py<PyAny>),
    Field(Py<PyString>),
}

pub type PackResult = Result<(), PackError>;

impl From<PyErr> for PackError {
    #[cold]
    fn from(error: PyErr) -> Self {
        Self::of(Cause::Raised(error))
    }
}

impl From<TooLong> for PackError {
    #[cold]
    fn from(error: TooLong) -> Self {
        PyValueError::new_err(error.to_string()).into()
    }
}

impl PackError {
    fn of(cause: Cause) -> Self {
        Self(Box::new(Inner {
            cause,
            steps: Vec::new(),
        }))
    }

    #[cold]
    pub fn cyclic(object: &Bound<'_, PyAny>) -> Self {
        Self::of(Cause::Cyclic(object.get_type().unbind()))
    }

    #[cold]
    pub fn too_deep() -> Self {
        Self::of(Cause::TooDeep)
    }

    /// A container changed while it was packed.
    #[cold]
    pub fn changed() -> Self {
        PyValueError::new_err("it changed while it was packed").into()
    }

    /// Notes that packing `object` failed, unless the error already names something inside it.
    #[cold]
    pub fn by(mut self, object: &Bound<'_, PyAny>) -> Self {
        if let Cause::Raised(error) = &self.0.cause {
            let py = object.py();
            // Other exceptions come from a property of the user's class and are raised as they are.
            if error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyValueError>(py)
                || error.is_instance_of::<PyOverflowError>(py)
            {
                self.0.cause = Cause::Unencodable(error.clone_ref(py), object.get_type().unbind());
            }
        }
        self
    }

    #[cold]
    pub fn at(mut self, step: Step) -> Self {
        self.0.steps.push(step);
        self
    }

    pub fn into_err(self, py: Python<'_>) -> PyErr {
        let Inner { cause, steps } = *self.0;
        let place = if steps.is_empty() {
            "the top".to_owned()
        } else {
            let mut path = String::new();
            for step in steps.iter().rev() {
                step.write(py, &mut path);
            }
            path
        };
        match cause {
            Cause::Raised(error) => error,
            Cause::Unencodable(error, class) => {
                let name = type_name(py, &class);
                let text = format!("cannot encode {name} at {place}: {}", error.value(py));
                let said = PyTypeError::new_err(text);
                said.set_cause(py, Some(error));
                said
            }
            Cause::Cyclic(class) => PyValueError::new_err(format!(
                "{} at {place} contains itself",
                type_name(py, &class)
            )),
            Cause::TooDeep => PyValueError::new_err(format!("nested too deeply at {place}")),
        }
    }
}

fn type_name(py: Python<'_>, class: &Py<PyType>) -> String {
    class
        .bind(py)
        .name()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

impl Step {
    fn write(&self, py: Python<'_>, path: &mut String) {
        let repr = |value: &Py<PyAny>| {
            value
                .bind(py)
                .repr()
                .map_or_else(|_| "?".to_owned(), |text| text.to_string())
        };
        let written = match self {
            Self::Index(index) => write!(path, "[{index}]"),
            Self::Value(key) => write!(path, "[{}]", repr(key)),
            Self::Key(key) => write!(path, "[key {}]", repr(key)),
            Self::Member(value) => write!(path, "{{{}}}", repr(value)),
            Self::Field(name) => write!(path, ".{}", name.bind(py)),
        };
        debug_assert!(written.is_ok(), "a String takes everything");
    }
}
