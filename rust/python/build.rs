//! Has the tests find libpython where the interpreter that they were built for has it.

fn main() {
    // Adds nothing with the feature `extension-module`.
    pyo3_build_config::add_libpython_rpath_link_args();
}
