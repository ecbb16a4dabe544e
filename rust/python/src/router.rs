//! The router as a Python object: started by its constructor, waited for without the interpreter lock.

use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use sglang_omni_router::{Config, PolicyKind, Router, StartError};

/// Seconds as a duration, or an error that names the field.
fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        PyValueError::new_err(format!(
            "{name}: {value} is not a number of seconds, 0 or more"
        ))
    })
}

#[pyclass(frozen, module = "sglang_omni._core")]
struct RouterServer {
    router: Router,
}

#[pymethods]
impl RouterServer {
    #[new]
    #[pyo3(signature = (*, host, port, worker_urls, policy, cache_threshold, balance_abs_threshold,
        balance_rel_threshold, eviction_interval, max_tree_size, threads, max_body_bytes, header_timeout,
        drain_timeout, probe_interval))]
    #[allow(clippy::too_many_arguments)] // One a field: Python passes its config by keyword.
    fn new(
        py: Python<'_>,
        host: String,
        port: u16,
        worker_urls: Vec<String>,
        policy: &str,
        cache_threshold: f64,
        balance_abs_threshold: usize,
        balance_rel_threshold: f64,
        eviction_interval: f64,
        max_tree_size: usize,
        threads: usize,
        max_body_bytes: u64,
        header_timeout: f64,
        drain_timeout: f64,
        probe_interval: f64,
    ) -> PyResult<Self> {
        let policy: PolicyKind = policy
            .parse()
            .map_err(|error| PyValueError::new_err(format!("{error}")))?;
        let config = Config {
            host,
            port,
            worker_urls,
            policy,
            cache_threshold,
            balance_abs_threshold,
            balance_rel_threshold,
            eviction_interval: seconds("eviction_interval", eviction_interval)?,
            max_tree_size,
            threads,
            max_body_bytes,
            header_timeout: seconds("header_timeout", header_timeout)?,
            drain_timeout: seconds("drain_timeout", drain_timeout)?,
            probe_interval: seconds("probe_interval", probe_interval)?,
        };
        let router = py
            .detach(|| Router::start(config))
            .map_err(|error| match error {
                StartError::Config(error) => PyValueError::new_err(error.to_string()),
                error => PyOSError::new_err(error.to_string()),
            })?;
        Ok(RouterServer { router })
    }

    /// `http://host:port` it listens on.
    #[getter]
    fn url(&self) -> String {
        format!("http://{}", self.router.addr())
    }

    fn drain(&self) {
        self.router.drain();
    }

    fn stop(&self) {
        self.router.stop();
    }

    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let limit = seconds("timeout", timeout)?;
        Ok(py.detach(|| self.router.wait(limit)))
    }
}

/// Names of the policies that a router can be started with.
#[pyfunction]
fn router_policies() -> Vec<&'static str> {
    PolicyKind::NAMES.to_vec()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RouterServer>()?;
    module.add_function(wrap_pyfunction!(router_policies, module)?)?;
    Ok(())
}
