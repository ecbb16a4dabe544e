//! The board of faults, for the driver of a campaign and for points in Python.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PySystemExit, PyValueError};
use pyo3::prelude::*;
use sglang_omni_faults::{self as faults, Action, Board, Fired, Order, SiteAction};

/// What a point has seen.
#[pyclass(frozen, get_all, module = "sglang_omni._core")]
struct PointState {
    hits: u64,
    fired: u64,
    fired_pid: u32,
    armed: bool,
}

#[pymethods]
impl PointState {
    fn __repr__(&self) -> String {
        let Self {
            hits,
            fired,
            fired_pid,
            armed,
        } = self;
        let armed = if *armed { "True" } else { "False" };
        format!("PointState(hits={hits}, fired={fired}, fired_pid={fired_pid}, armed={armed})")
    }
}

/// A board that this process drives. Its own points look at the one that the environment names.
#[pyclass(frozen, module = "sglang_omni._core")]
struct Switchboard {
    board: Arc<Board>,
}

#[pymethods]
impl Switchboard {
    /// Makes a new board in a file that must not be there yet.
    #[staticmethod]
    fn create(path: PathBuf) -> PyResult<Self> {
        let board = Arc::new(Board::create(&path)?);
        Ok(Self { board })
    }

    #[staticmethod]
    fn open(path: PathBuf) -> PyResult<Self> {
        let board = Arc::new(Board::open(&path)?);
        Ok(Self { board })
    }

    #[pyo3(signature = (point, action, *, after = 1, times = 1, argument = 0, pid = 0))]
    fn arm(
        &self,
        point: &str,
        action: &str,
        after: u32,
        times: u32,
        argument: u32,
        pid: u32,
    ) -> PyResult<()> {
        let Some(action) = Action::named(action) else {
            let known = Action::ALL.map(Action::name).join(", ");
            let text = format!("{action:?} is no action; there are {known}");
            return Err(PyValueError::new_err(text));
        };
        let order = Order {
            action,
            argument,
            after,
            times,
            pid,
        };
        let armed = self.board.arm(point, order);
        armed.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => PyValueError::new_err(error.to_string()),
            _ => error.into(),
        })
    }

    fn disarm(&self) {
        self.board.disarm();
    }

    fn points(&self) -> PyResult<BTreeMap<String, PointState>> {
        let points = self.board.points()?.into_iter().map(|point| {
            let state = PointState {
                hits: point.hits,
                fired: point.fired,
                fired_pid: point.fired_pid,
                armed: point.armed,
            };
            (point.name, state)
        });
        Ok(points.collect())
    }

    /// Has this process's own points look at this board, whatever the environment says.
    fn switch_on(&self) {
        faults::switch_on(self.board.clone());
    }
}

#[pyfunction]
fn switch_off_faults() {
    faults::switch_off();
}

#[pyfunction]
fn faults_on() -> bool {
    faults::are_on()
}

/// A point of Python code: does what fires there, and returns what only the point's site can do.
#[pyfunction]
#[pyo3(signature = (name, /))]
fn fault_point(py: Python<'_>, name: &str) -> PyResult<Option<&'static str>> {
    if !faults::are_on() {
        return Ok(None);
    }
    // Without the lock: what stops or interrupts this thread holds up no other.
    match py.detach(|| faults::reach(name)) {
        None => Ok(None),
        Some(Fired::Wait(wait)) => {
            py.detach(|| wait.block());
            Ok(None)
        }
        Some(Fired::Error(error)) => {
            let text = format!("{error}: a fault at {name}");
            Err(PyOSError::new_err((error.raw_os_error(), text)))
        }
        Some(Fired::Fork(time)) => fork(py, time).map(|()| None),
        Some(Fired::Site(action)) => Ok(Some(
            match action {
                SiteAction::Drop => Action::Drop,
                SiteAction::Duplicate => Action::Duplicate,
                SiteAction::Corrupt => Action::Corrupt,
                SiteAction::Partial => Action::Partial,
            }
            .name(),
        )),
    }
}

/// Forks as Python code does, with what is registered to run at forks.
fn fork(py: Python<'_>, time: Duration) -> PyResult<()> {
    match py.import("os")?.call_method0("fork")?.extract()? {
        0 => faults::sleep_and_end(time),
        child => Ok(faults::reap(child)?),
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Not an ImportError, which callers may take for a missing module: without its board the process must not run.
    faults::switch_on_from_environment().map_err(PySystemExit::new_err)?;
    module.add_class::<PointState>()?;
    module.add_class::<Switchboard>()?;
    module.add_function(wrap_pyfunction!(fault_point, module)?)?;
    module.add_function(wrap_pyfunction!(faults_on, module)?)?;
    module.add_function(wrap_pyfunction!(switch_off_faults, module)?)?;
    Ok(())
}
