//! The shared-memory arena and leases on its payloads.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{create_exception, ffi};
use sglang_omni_payload::copy;
use sglang_omni_relay::{
    Access, AllocateError, Announcement, Arena, Extent, Extents, FanoutRoom, Lease, Ledger,
    Mapping, OpenError, Place, Room, TicketState, open, try_open,
};

use crate::buffer::BufferView;
use crate::payload::PayloadPlan;

create_exception!(
    sglang_omni._core,
    ArenaFull,
    PyRuntimeError,
    "An edge has no credit for a payload now."
);
create_exception!(
    sglang_omni._core,
    LeaseError,
    PyRuntimeError,
    "A payload cannot be read (any more)."
);

/// `(segment, offset, length, ticket, generation)`: where a payload lies.
type PlaceRow = (u64, u64, u64, u32, u32);

fn place((segment, offset, len, ticket, generation): PlaceRow) -> Place {
    Place {
        segment,
        offset,
        len,
        ticket,
        generation,
    }
}

/// Where a payload lies, and whether its reader may keep views of it.
type Announced = (PlaceRow, bool);

fn announced(announcement: Announcement) -> Announced {
    let Place {
        segment,
        offset,
        len,
        ticket,
        generation,
    } = announcement.place;
    let row = (segment, offset, len, ticket, generation);
    (row, announcement.lend)
}

fn refused(error: AllocateError) -> PyErr {
    match error {
        AllocateError::Full(full) => ArenaFull::new_err(full.to_string()),
        AllocateError::Io(error) => PyOSError::new_err(error.to_string()),
    }
}

/// Writes a payload but for what lies in a GPU's memory. Returns where it begins.
///
/// # Safety
/// The room is the caller's alone and long enough, and the memory of the plan's sources is still there.
unsafe fn write(plan: &PayloadPlan, room: &Room) -> usize {
    let target = room.ready();
    // SAFETY: the caller's promise.
    unsafe { plan.plan.write_to(target) };
    target as usize
}

fn unreadable(error: OpenError) -> PyErr {
    LeaseError::new_err(error.to_string())
}

fn access(shared: bool) -> Access {
    if shared {
        Access::CopyOnWrite
    } else {
        Access::Sole
    }
}

fn seconds(keep: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(keep).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A payload written once for several targets.
#[pyclass(frozen, name = "ShmHeld", module = "sglang_omni._core")]
struct ShmHeld {
    held: FanoutRoom,
}

#[pyclass(frozen, name = "ShmArena", module = "sglang_omni._core")]
struct ShmArena {
    arena: Arena,
}

#[pymethods]
impl ShmArena {
    #[new]
    fn new(limit: u64) -> PyResult<Self> {
        Ok(Self {
            arena: Arena::new(limit)?,
        })
    }

    #[getter]
    fn name(&self) -> &str {
        self.arena.name()
    }

    #[getter]
    fn event_fd(&self) -> i32 {
        self.arena.event().as_raw_fd()
    }

    /// Packs a payload into room for it: the one copy it takes.
    fn put(
        &self,
        py: Python<'_>,
        edge: &str,
        key: &str,
        plan: &PayloadPlan,
        keep: f64,
    ) -> PyResult<Announced> {
        let grant = self
            .arena
            .allocate(edge, key, plan.plan.len(), seconds(keep)?)
            .map_err(refused)?;
        // SAFETY: the room is ours alone and long enough; the plan keeps the sources' owners.
        let target = py.detach(|| unsafe { write(plan, &grant.room) });
        plan.fill(py, target)?;
        Ok(announced(grant.publish()))
    }

    /// Copies a buffer's bytes into room for them.
    fn put_raw(
        &self,
        py: Python<'_>,
        edge: &str,
        key: &str,
        data: &Bound<'_, PyAny>,
        keep: f64,
    ) -> PyResult<Announced> {
        let data = BufferView::new(data)?;
        let grant = self
            .arena
            .allocate(edge, key, data.len() as u64, seconds(keep)?)
            .map_err(refused)?;
        // SAFETY: the room is ours alone and as long as the buffer, which is held.
        py.detach(|| unsafe { copy(data.as_ptr(), grant.room.ready(), data.len()) });
        Ok(announced(grant.publish()))
    }

    /// Packs a payload for several targets: the one copy all of them take together.
    fn hold(&self, py: Python<'_>, plan: &PayloadPlan) -> PyResult<ShmHeld> {
        let held = self.arena.hold(plan.plan.len()).map_err(refused)?;
        // SAFETY: the room is ours alone and long enough; the plan keeps the sources' owners.
        let target = py.detach(|| unsafe { write(plan, &held.room) });
        plan.fill(py, target)?;
        Ok(ShmHeld { held })
    }

    /// One target's right to what is held.
    fn put_held(&self, edge: &str, key: &str, held: &ShmHeld, keep: f64) -> PyResult<Announced> {
        let issued = self.arena.issue(&held.held, edge, key, seconds(keep)?);
        Ok(announced(issued.map_err(refused)?))
    }

    #[getter]
    fn mapping(&self) -> ShmMapping {
        ShmMapping {
            mapping: self.arena.mapping(),
        }
    }

    /// "reserved", "ready", "held", "returned", or "free" once its room is given to others or taken back.
    fn state(&self, place_row: PlaceRow) -> &'static str {
        match self.arena.state(&place(place_row)) {
            TicketState::Free => "free",
            TicketState::Reserved => "reserved",
            TicketState::Ready => "ready",
            TicketState::Held => "held",
            TicketState::Returned => "returned",
        }
    }

    fn revoke(&self, key: &str) -> usize {
        self.arena.revoke(key)
    }

    fn revoke_place(&self, place_row: PlaceRow) -> bool {
        self.arena.revoke_place(&place(place_row))
    }

    #[pyo3(signature = (edge = None))]
    fn wait_begin(&self, edge: Option<&str>) {
        self.arena.wait_begin(edge);
    }

    #[pyo3(signature = (edge = None))]
    fn wait_end(&self, edge: Option<&str>) {
        self.arena.wait_end(edge);
    }

    fn edges(&self) -> Vec<(String, u64, u64)> {
        self.arena.edges()
    }

    fn written(&self) -> u64 {
        self.arena.written()
    }

    fn outstanding(&self) -> usize {
        self.arena.outstanding()
    }
}

/// An arena's memory as this process has it mapped, for as long as this lives.
#[pyclass(frozen, name = "ShmMapping", module = "sglang_omni._core")]
struct ShmMapping {
    mapping: Arc<Mapping>,
}

#[pymethods]
impl ShmMapping {
    #[getter]
    fn address(&self) -> usize {
        self.mapping.start() as usize
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.mapping.len()
    }

    #[getter]
    fn is_used_elsewhere(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }
}

/// Credits of edges that do not share.
#[pyclass(frozen, module = "sglang_omni._core")]
struct CreditLedger {
    ledger: Ledger,
}

#[pymethods]
impl CreditLedger {
    #[new]
    fn new(limit: u64) -> Self {
        Self {
            ledger: Ledger::new(limit),
        }
    }

    #[getter]
    fn limit(&self) -> u64 {
        self.ledger.limit()
    }

    #[pyo3(signature = (edge, amount = 1))]
    fn take(&self, edge: &str, amount: u64) -> bool {
        self.ledger.edge(edge).take(amount).is_some()
    }

    #[pyo3(signature = (edge, amount = 1))]
    fn give_back(&self, edge: &str, amount: u64) -> PyResult<()> {
        let credit = self.ledger.edge(edge);
        if credit.give_back(amount) {
            return Ok(());
        }
        let held = credit.held();
        Err(PyValueError::new_err(format!(
            "edge {edge:?} holds {held}: {amount} were not taken and cannot be given back"
        )))
    }

    fn note_wait(&self, edge: &str) {
        self.ledger.edge(edge).note_wait();
    }

    fn held(&self, edge: &str) -> u64 {
        self.ledger.edge(edge).held()
    }

    fn snapshot(&self) -> Vec<(String, u64, u64)> {
        self.ledger.snapshot()
    }
}

/// Ranges of memory that a transfer engine has registered.
#[pyclass(frozen, name = "Extents", module = "sglang_omni._core")]
struct PyExtents {
    extents: Mutex<Extents>,
}

impl PyExtents {
    fn lock(&self) -> MutexGuard<'_, Extents> {
        // Every change is complete before anything that can panic.
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyExtents {
    #[new]
    fn new(capacity: u64) -> Self {
        Self {
            extents: Mutex::new(Extents::new(capacity)),
        }
    }

    fn allocate(&self, nbytes: u64) -> Option<(u64, u64)> {
        let Extent { start, len } = self.lock().allocate(nbytes)?;
        Some((start, len))
    }

    fn release(&self, start: u64, nbytes: u64) {
        self.lock().release(Extent { start, len: nbytes });
    }
}

/// Of a buffer's bytes.
#[pyfunction]
fn checksum(data: &Bound<'_, PyAny>) -> PyResult<u64> {
    let view = BufferView::new(data)?;
    // SAFETY: the caller lets nothing write to it now; what does so in spite of that changes the sum.
    let bytes = unsafe { view.as_slice() };
    Ok(data.py().detach(|| sglang_omni_relay::checksum(bytes)))
}

/// Holds an extent for as long as anything views it through the buffer protocol.
#[pyclass(frozen, name = "ShmLease", module = "sglang_omni._core")]
struct ShmLease {
    /// There until this is dropped.
    lease: Option<Lease>,
    /// Takes the lease over when the last view is gone.
    heir: OnceLock<Py<PyAny>>,
}

impl ShmLease {
    fn of(lease: Lease) -> Self {
        Self {
            lease: Some(lease),
            heir: OnceLock::new(),
        }
    }

    fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("taken by drop alone")
    }
}

impl Drop for ShmLease {
    fn drop(&mut self) {
        let (Some(heir), Some(lease)) = (self.heir.take(), self.lease.take()) else {
            return;
        };
        // Without an interpreter, or where the heir fails, the lease is given back here and now.
        let _ = Python::try_attach(|py| {
            // Views die while errors are on their way, too.
            let raised = PyErr::take(py);
            let left = Bound::new(py, Self::of(lease)).and_then(|left| heir.call1(py, (left,)));
            if let Err(error) = left {
                error.write_unraisable(py, None);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

#[pymethods]
impl ShmLease {
    #[new]
    #[pyo3(signature = (name, place_row, *, shared = false))]
    fn new(py: Python<'_>, name: &str, place_row: PlaceRow, shared: bool) -> PyResult<Self> {
        let lease = py.detach(|| open(name, &place(place_row), access(shared)));
        lease.map(Self::of).map_err(unreadable)
    }

    /// The same without waiting for the sender: None where it has to be asked for memory first.
    #[staticmethod]
    #[pyo3(signature = (name, place_row, *, shared = false))]
    fn try_open(name: &str, place_row: PlaceRow, shared: bool) -> PyResult<Option<Self>> {
        let lease = try_open(name, &place(place_row), access(shared)).map_err(unreadable)?;
        Ok(lease.map(Self::of))
    }

    /// Has `heir` called, once, with another lease on the payload when the last view of this one is gone.
    fn bequeath(&self, heir: Py<PyAny>) {
        let _ = self.heir.set(heir);
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.lease().len()
    }

    #[getter]
    fn address(&self) -> usize {
        self.lease().as_ptr() as usize
    }

    /// The sender's arena; None for a payload in memory of its own.
    #[getter]
    fn arena(&self) -> Option<ShmMapping> {
        let mapping = self.lease().arena()?;
        Some(ShmMapping { mapping })
    }

    /// Copies the payload to the beginning of a buffer.
    fn copy_to(&self, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let lease = self.lease();
        let view = BufferView::writable(target, lease.len())?;
        // SAFETY: the buffer is that long and held. Of views of the lease it may be one, and then is the source.
        target
            .py()
            .detach(|| unsafe { std::ptr::copy(lease.as_ptr(), view.as_ptr(), lease.len()) });
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter with a valid `view`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let lease = slf.get().lease();
        // SAFETY: the memory stays mapped and this payload's until the lease is dropped, and the view
        // holds a reference to its owner. torch refuses no read-only buffers but warns, so it is writable.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                lease.as_ptr().cast(),
                lease.len() as isize,
                0,
                flags,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ShmArena>()?;
    module.add_class::<ShmHeld>()?;
    module.add_class::<ShmLease>()?;
    module.add_class::<ShmMapping>()?;
    module.add_class::<CreditLedger>()?;
    module.add_class::<PyExtents>()?;
    module.add_function(wrap_pyfunction!(checksum, module)?)?;
    module.add("ArenaFull", module.py().get_type::<ArenaFull>())?;
    module.add("LeaseError", module.py().get_type::<LeaseError>())?;
    Ok(())
}
