//! The state of one client's connection: what it waits for, and since when.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crate::base::clock::{self, LaneClock, Tick};

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
    /// The client to take more of the answer.
    Blocked = 4,
    /// The worker to send more of the answer.
    Answer = 5,
}

impl Phase {
    fn from_u8(value: u8) -> Phase {
        [
            Phase::Idle,
            Phase::Head,
            Phase::Busy,
            Phase::Body,
            Phase::Blocked,
            Phase::Answer,
        ][value as usize]
    }
}

/// One thread uses it. It is atomic because it is part of the connection's future, which hyper wants to be `Send`.
#[derive(Default)]
pub struct Client {
    phase: AtomicU8,
    /// When the phase began, or, while bytes are waited for, when the last ones were transferred.
    since: AtomicU32,
    is_late: AtomicBool,
    has_left: AtomicBool,
    /// Whether the worker has been asked for more of the answer than it has sent.
    awaits_answer: AtomicBool,
    /// Whether only a reset tells the client that its answer is not whole.
    is_cut: AtomicBool,
    /// Ticks waited for the client's body, and bytes of it that came, since it last counted as moving.
    body_waited: AtomicU32,
    body_bytes: AtomicU32,
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

    pub fn enters(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
        self.moves();
    }

    /// Enters a phase, unless it is in it already: then the phase's time runs on.
    pub fn stays_in(&self, phase: Phase) {
        if self.phase() != phase {
            self.enters(phase);
        }
    }

    /// Notes that there is nothing to send until the worker has sent more.
    pub fn awaits_answer(&self) {
        self.awaits_answer.store(true, Relaxed);
        if self.phase() == Phase::Busy {
            self.enters(Phase::Answer);
        }
    }

    /// Notes that the worker has sent more, or all.
    pub fn is_answered(&self) {
        self.awaits_answer.store(false, Relaxed);
        if self.phase() == Phase::Answer {
            self.enters(Phase::Busy);
        }
    }

    /// Has the connection end with a reset, because an ordinary end would make a broken answer look whole.
    pub fn cut(&self) {
        self.is_cut.store(true, Relaxed);
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Relaxed)
    }

    /// Notes that the client takes its answer again.
    pub fn is_unblocked(&self) {
        self.enters(match self.awaits_answer.load(Relaxed) {
            true => Phase::Answer,
            false => Phase::Busy,
        });
    }

    /// Notes a piece of a body. The wait for the next piece starts anew only once the pieces add up to `floor` bytes:
    /// a body that only dribbles does not count as moving.
    pub fn receives(&self, bytes: usize, floor: u32) {
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
    pub fn begins(&self) {
        self.body_bytes.store(0, Relaxed);
        self.body_waited.store(0, Relaxed);
        self.enters(Phase::Busy);
    }

    /// Notes that bytes were transferred, so that a wait for them begins anew.
    pub fn moves(&self) {
        self.since.store(clock::now(), Relaxed);
        self.is_late.store(false, Relaxed);
    }

    /// Whether the client has kept the router waiting for too long.
    pub fn is_late(&self) -> bool {
        self.is_late.load(Relaxed)
    }

    /// Notes that the client has closed its side, so that nobody waits for the answer.
    pub fn leaves(&self) {
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

    pub fn is_driven_by(&self, waker: &Waker) {
        self.task.get_or_init(|| waker.clone());
    }

    pub fn wake(&self) {
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }
}
