//! The router as a Python object: started by its constructor, waited for without the interpreter lock.

use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use sglang_omni_router::{Config, ConfigError, PolicyKind, Router, StartError};

#[pyclass(frozen, module = "sglang_omni._core")]
struct RouterServer {
    router: Router,
}

#[pymethods]
impl RouterServer {
    #[new]
    fn new(py: Python<'_>, config: &str) -> PyResult<Self> {
        let wrong = |error: ConfigError| PyValueError::new_err(error.to_string());
        let config = Config::from_json(config).map_err(wrong)?;
        let router = py
            .detach(|| Router::start(config))
            .map_err(|error| match error {
                StartError::Config(error) => wrong(error),
                error => PyOSError::new_err(error.to_string()),
            })?;
        Ok(RouterServer { router })
    }

    /// Its address as a client writes it.
    #[getter]
    fn url(&self) -> String {
        self.router.url()
    }

    fn announce(&self) {
        self.router.announce();
    }

    fn reload(&self) {
        self.router.reload();
    }

    fn drain(&self) {
        self.router.drain();
    }

    fn stop(&self) {
        self.router.stop();
    }

    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(timeout).map_err(|_| {
            PyValueError::new_err(format!("timeout: {timeout} is not a number of seconds"))
        })?;
        Ok(py.detach(|| self.router.wait(limit)))
    }
}

/// Raises what a router with this configuration would refuse to start for, as far as can be told without
/// starting it.
#[pyfunction]
fn check_router_config(config: &str) -> PyResult<()> {
    let wrong = |error: ConfigError| PyValueError::new_err(error.to_string());
    Config::from_json(config)
        .and_then(|config| config.validate())
        .map_err(wrong)
}

/// Names of the policies that a router can be started with.
#[pyfunction]
fn router_policies() -> Vec<&'static str> {
    PolicyKind::NAMES.to_vec()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RouterServer>()?;
    module.add_function(wrap_pyfunction!(check_router_config, module)?)?;
    module.add_function(wrap_pyfunction!(router_policies, module)?)?;
    Ok(())
}
