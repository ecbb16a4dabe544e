//! `sglang_omni._core`: the only crate that knows PyO3. One module per area; each area registers its
//! own classes and functions, so this file only lists the areas.

use pyo3::prelude::*;

mod codec;
mod json_size;
mod payload;
mod relay;
mod router;

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    codec::register(module)?;
    json_size::register(module)?;
    payload::register(module)?;
    relay::register(module)?;
    router::register(module)?;
    Ok(())
}
