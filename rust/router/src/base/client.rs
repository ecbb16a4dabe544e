//! The state of one client's connection: what it waits for, and since when.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use crate::base::clock::{self, LaneClock, Tick};

/// Bytes of its answer that a client must take each second, on average, while it is behind.
const LEAST_RATE: u64 = 8192;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The next request.
    Idle = 0,
    /// The rest of a request's head; a new connection starts here.
    Head = 1,
    /// The router or a worker.
    Busy = 2,
    /// More of the request's body from the client.
    Body = 3,
    /// The worker to send more of the answer.
    Answer = 4,
}

impl Phase {
    fn from_u8(value: u8) -> Phase {
        [
            Phase::Idle,
            Phase::Head,
            Phase::Busy,
            Phase::Body,
            Phase::Answer,
        ][value as usize]
    }
}

/// How slowly a client takes its answer.
pub struct Lag {
    /// Bytes that wait for it.
    pub unread: u64,
    /// Bytes that it has taken in this time.
    pub taken: u64,
    pub seconds: f32,
}

/// True if a client takes its answer too slowly: nothing for more than `limit` ticks (`idle`), or less than the least
/// rate after them (`taken` bytes in `waited` ticks).
fn is_too_slow(idle: Tick, waited: Tick, taken: u64, limit: Tick) -> bool {
    let earned = Duration::from_secs_f64(taken as f64 / LEAST_RATE as f64);
    idle > limit || waited > limit.saturating_add(clock::ticks(earned))
}

/// One thread uses it. It is atomic because it is part of the connection's future, which hyper wants to be `Send`.
#[derive(Default)]
pub struct Client {
    phase: AtomicU8,
    /// When the phase began, or, while bytes are waited for, when the last ones were transferred.
    since: AtomicU32,
    is_late: AtomicBool,
    has_left: AtomicBool,
    /// Whether only a reset tells the client that its answer is not whole.
    is_cut: AtomicBool,
    /// Ticks waited for the client's body, and bytes of it that came, since it last counted as moving.
    body_waited: AtomicU32,
    body_bytes: AtomicU32,
    /// Since when the client is behind: bytes of answers wait for it, in whatever phase. 0 if it is not.
    behind_since: AtomicU32,
    /// When it last took any, since then.
    last_taken: AtomicU32,
    /// True if it was behind at two looks in a row.
    is_slow: AtomicBool,
    /// Bytes that it has taken since then, and bytes that are held for it.
    taken: AtomicU64,
    unread: AtomicU64,
    /// Wakes the connection's task.
    task: OnceLock<Waker>,
}

impl Client {
    pub fn new() -> Arc<Client> {
        Arc::new(Client {
            phase: AtomicU8::new(Phase::Head as u8),
            since: AtomicU32::new(clock::now()),
            ..Client::default()
        })
    }

    pub fn phase(&self) -> Phase {
        Phase::from_u8(self.phase.load(Relaxed))
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
        self.mark_moving();
    }

    /// Enters a phase, unless it is in it already: then the phase's time runs on.
    pub fn stay_in(&self, phase: Phase) {
        if self.phase() != phase {
            self.enter(phase);
        }
    }

    /// Notes that there is nothing to send until the worker has sent more.
    pub fn await_answer(&self) {
        if self.phase() == Phase::Busy {
            self.enter(Phase::Answer);
        }
    }

    /// Notes that the worker has sent more, or all.
    pub fn mark_answered(&self) {
        if self.phase() == Phase::Answer {
            self.enter(Phase::Busy);
        }
    }

    /// Has the connection end with a reset, because an ordinary end would make a broken answer look whole.
    pub fn cut(&self) {
        self.is_cut.store(true, Relaxed);
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Relaxed)
    }

    /// Notes that bytes wait for the client, which cannot take them now.
    pub fn mark_behind(&self) {
        if !self.is_behind() {
            self.taken.store(0, Relaxed);
            self.behind_since.store(clock::now(), Relaxed);
            self.last_taken.store(clock::now(), Relaxed);
        }
    }

    pub fn is_behind(&self) -> bool {
        self.behind_since.load(Relaxed) != 0
    }

    /// True if the client has been behind for two looks in a row, so that its worker should not wait for it. Falling
    /// behind a fast worker for a moment does not count.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Relaxed)
    }

    /// Notes bytes that the client has taken.
    pub fn count_taken(&self, bytes: usize) {
        if self.is_behind() {
            self.taken.fetch_add(bytes as u64, Relaxed);
            self.last_taken.store(clock::now(), Relaxed);
        }
    }

    /// Notes how many bytes are held for the client.
    pub fn set_unread(&self, bytes: usize) {
        self.unread.store(bytes as u64, Relaxed);
    }

    /// Notes that the client has taken all there is.
    pub fn mark_caught_up(&self) {
        if self.is_behind() {
            self.behind_since.store(0, Relaxed);
            self.is_slow.store(false, Relaxed);
            if matches!(self.phase(), Phase::Idle | Phase::Head) {
                self.mark_moving();
            }
            // The end of an answer that broke off may wait for this.
            self.wake();
        }
    }

    /// How slowly the client takes its answer, if it has taken nothing for longer than `limit`, or after `limit` less
    /// than the least rate. For the lane to ask once a tick.
    pub fn lag(&self, look: LaneClock, limit: Tick) -> Option<Lag> {
        if !self.is_behind() {
            return None;
        }
        let ticks_since = |start: &AtomicU32| {
            let since = look.excusing(start.load(Relaxed));
            start.store(since, Relaxed);
            look.now - since
        };
        let waited = ticks_since(&self.behind_since);
        let idle = ticks_since(&self.last_taken);
        let taken = self.taken.load(Relaxed);
        // The tick in which it fell behind may have been nearly over.
        if waited > 1 && !self.is_slow.swap(true, Relaxed) {
            self.wake();
        }
        is_too_slow(idle, waited, taken, limit).then(|| Lag {
            unread: self.unread.load(Relaxed),
            taken,
            seconds: clock::seconds(waited),
        })
    }

    /// Notes a piece of a body. The wait for the next piece starts anew only once the pieces add up to `floor` bytes:
    /// a body that only dribbles does not count as moving.
    pub fn count_received(&self, bytes: usize, floor: u32) {
        let received = self.body_bytes.load(Relaxed);
        let received = received.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if received >= floor {
            self.body_bytes.store(0, Relaxed);
            self.body_waited.store(0, Relaxed);
        } else {
            self.body_bytes.store(received, Relaxed);
            if self.phase() == Phase::Body {
                let waited = clock::now().saturating_sub(self.since.load(Relaxed));
                self.body_waited.fetch_add(waited, Relaxed);
            }
        }
    }

    /// Notes the start of a request.
    pub fn begin_request(&self) {
        self.body_bytes.store(0, Relaxed);
        self.body_waited.store(0, Relaxed);
        self.enter(Phase::Busy);
    }

    /// Notes that bytes were transferred, so that a wait for them begins anew.
    pub fn mark_moving(&self) {
        self.since.store(clock::now(), Relaxed);
        self.is_late.store(false, Relaxed);
    }

    /// Whether the client has kept the router waiting for too long.
    pub fn is_late(&self) -> bool {
        self.is_late.load(Relaxed)
    }

    /// Notes that the client has closed its side, so that nobody waits for the answer.
    pub fn mark_left(&self) {
        self.has_left.store(true, Relaxed);
        self.wake();
    }

    pub fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Checks, once a tick, how long the connection has waited; after more than `limit` it is late.
    pub fn look_over(&self, look: LaneClock, limit: Option<Tick>) {
        let since = look.excusing(self.since.load(Relaxed));
        self.since.store(since, Relaxed);
        let mut waited = look.now - since;
        if self.phase() == Phase::Body {
            waited = waited.saturating_add(self.body_waited.load(Relaxed));
        }
        // The tick in which the wait began may have been nearly over.
        if limit.is_some_and(|limit| waited > limit) {
            self.is_late.store(true, Relaxed);
            self.wake();
        }
    }

    #[cfg(test)]
    pub fn since(&self) -> Tick {
        self.since.load(Relaxed)
    }

    pub fn set_waker(&self, waker: &Waker) {
        self.task.get_or_init(|| waker.clone());
    }

    pub fn wake(&self) {
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_must_take_something_and_enough_on_average() {
        let minute = clock::ticks(Duration::from_secs(60));
        assert!(!is_too_slow(minute, minute, 0, minute));
        assert!(is_too_slow(minute + 1, minute + 1, 0, minute));
        // However much it took before.
        assert!(is_too_slow(minute + 1, 2 * minute, 1 << 30, minute));
        // Two minutes, of which one is for nothing.
        assert!(!is_too_slow(1, 2 * minute, 60 * LEAST_RATE, minute));
        assert!(is_too_slow(1, 2 * minute + 1, 60 * LEAST_RATE, minute));
    }
}
