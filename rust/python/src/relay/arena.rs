//! The sender's shared memory: payloads are packed into it.

use std::os::fd::AsRawFd;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use sglang_omni_payload::copy;
use sglang_omni_relay::{AllocateError, Announcement, Arena, FanoutRoom, Place, Room, TicketState};

use super::{ArenaFull, PlaceRow, ShmMapping, place};
use crate::buffer::BufferView;
use crate::payload::PayloadPlan;

/// A payload's place, and whether its reader may keep views of it.
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

/// Writes a payload.
///
/// # Safety
/// The room is long enough and no other thread uses it.
unsafe fn write(py: Python<'_>, plan: &PayloadPlan, room: &Room) -> PyResult<()> {
    let target = py.detach(|| room.ready() as usize);
    // SAFETY: the caller's promise.
    unsafe { plan.write(py, target) }
}

fn seconds(keep: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(keep).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A payload that is written once for several targets.
#[pyclass(frozen, name = "ShmHeld", module = "sglang_omni._core")]
pub struct ShmHeld {
    held: FanoutRoom,
}

#[pyclass(frozen, name = "ShmArena", module = "sglang_omni._core")]
pub struct ShmArena {
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

    /// Packs a payload into a room of its own, which is its only copy.
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
        // SAFETY: this call alone uses the room, which is long enough.
        unsafe { write(py, plan, &grant.room) }?;
        Ok(announced(grant.publish()))
    }

    /// Copies a buffer's bytes into a room of their own.
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
        // SAFETY: this call alone uses the room, which is as long as the buffer; the buffer is held.
        py.detach(|| unsafe { copy(data.as_ptr(), grant.room.ready(), data.len()) });
        Ok(announced(grant.publish()))
    }

    /// Packs a payload for several targets, which share this one copy.
    fn hold(&self, py: Python<'_>, plan: &PayloadPlan) -> PyResult<ShmHeld> {
        let held = self.arena.hold(plan.plan.len()).map_err(refused)?;
        // SAFETY: this call alone uses the room, which is long enough.
        unsafe { write(py, plan, &held.room) }?;
        Ok(ShmHeld { held })
    }

    /// Publishes a held payload to one target.
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

    /// "reserved", "ready", "held", "returned", or "free" once the payload is collected, revoked or expired.
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
