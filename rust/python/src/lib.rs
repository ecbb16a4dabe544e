//! The Python module `sglang_omni._core`, in the only crate that knows PyO3.
//!
//! Each section of `_core.pyi` is a module of the same name here, which registers its classes and functions.

// Unsafe code is only in the modules and functions that say so.
#![deny(unsafe_code)]

use pyo3::prelude::*;

#[expect(unsafe_code)]
mod buffer;
mod codec;
mod faults;
mod json_size;
#[expect(unsafe_code)]
mod payload;
#[cfg(target_os = "linux")]
mod relay;
mod router;
#[cfg(test)]
mod test_support;

// The codec borrows items of dicts and lists, which only the interpreter's lock keeps alive. A free-threaded
// interpreter turns its lock on when it imports this module.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    codec::register(module)?;
    faults::register(module)?;
    json_size::register(module)?;
    payload::register(module)?;
    #[cfg(target_os = "linux")]
    relay::register(module)?;
    router::register(module)?;
    Ok(())
}
