//! `sglang_omni._core`: the only crate that knows PyO3. One module per area; each area registers its
//! own classes and functions, so this file only lists the areas.

use pyo3::prelude::*;

mod buffer;
mod codec;
mod json_size;
mod payload;
#[cfg(test)]
mod payload_tests;
mod relay;
#[cfg(test)]
mod relay_tests;
mod router;
#[cfg(test)]
mod test_support;

// The codec borrows from dicts and lists what the lock alone keeps there: an interpreter without one turns it on.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    codec::register(module)?;
    json_size::register(module)?;
    payload::register(module)?;
    relay::register(module)?;
    router::register(module)?;
    Ok(())
}
