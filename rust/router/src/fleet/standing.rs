//! Where a worker stands among the others: what puts it behind them, and what brings it back.
//!
//! Nothing ever shuts a worker out, but that it is a router that leads back to this one. A request goes to
//! the workers of the best class there is, so a lone worker gets every request whatever is known against it.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use hyper::StatusCode;

use crate::base::clock::Tick;

/// What `/workers` says of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not probed yet; takes requests.
    Unknown,
    Up,
    /// Asked for time with `Retry-After`.
    Busy,
    /// Failed request after request while others did well.
    Failing,
    /// Gave no first byte while others did.
    Hung,
    /// Was failing or hung; the next request is its trial.
    HalfOpen,
    /// Takes no connection, or its `/health` fails or does not answer.
    Down,
    /// A router that leads back to this one.
    Loop,
}

impl Health {
    pub fn name(self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Busy => "busy",
            Health::Failing => "failing",
            Health::Hung => "hung",
            Health::HalfOpen => "half_open",
            Health::Down => "down",
            Health::Loop => "loop",
        }
    }
}

/// Why a worker is behind the others, the worse the higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Behind {
    Busy = 4,
    Failing = 8,
    Hung = 16,
    Down = 32,
    /// Unlike the others it shuts a worker out: what it gets comes back.
    Loop = 64,
}

const UNPROBED: u8 = 1;
const TRIAL: u8 = 2;
const BUSY: u8 = Behind::Busy as u8;
const FAILING: u8 = Behind::Failing as u8;
const HUNG: u8 = Behind::Hung as u8;
const DOWN: u8 = Behind::Down as u8;
const LOOP: u8 = Behind::Loop as u8;

/// Written by every lane, on the way of a request only where something changes, and apart from what every
/// request changes.
#[derive(Debug)]
#[repr(align(64))]
pub struct Standing {
    flags: AtomicU8,
    /// Failures since the last good answer.
    streak: AtomicU32,
    /// The tick of the last byte that came from the worker.
    heard: AtomicU32,
    busy_until: AtomicU32,
    /// When a failing or hung worker gets its next trial.
    trial_at: AtomicU32,
}

impl Default for Standing {
    fn default() -> Self {
        Standing {
            flags: AtomicU8::new(UNPROBED),
            streak: AtomicU32::new(0),
            heard: AtomicU32::new(0),
            busy_until: AtomicU32::new(0),
            trial_at: AtomicU32::new(0),
        }
    }
}

impl Standing {
    pub fn health(&self) -> Health {
        let flags = self.flags.load(Relaxed);
        match flags {
            _ if flags & LOOP != 0 => Health::Loop,
            _ if flags & DOWN != 0 => Health::Down,
            _ if flags & TRIAL != 0 => Health::HalfOpen,
            _ if flags & HUNG != 0 => Health::Hung,
            _ if flags & FAILING != 0 => Health::Failing,
            _ if flags & BUSY != 0 => Health::Busy,
            _ if flags & UNPROBED != 0 => Health::Unknown,
            _ => Health::Up,
        }
    }

    /// The class of workers that get requests only where there are no others; those above it get none.
    pub const LAST_CLASS: u32 = u8::BITS - DOWN.leading_zeros();

    /// 0 for a worker nothing is known against; the higher, the further behind.
    pub fn class(&self) -> u32 {
        let flags = self.flags.load(Relaxed);
        let counts = match flags & TRIAL {
            0 => BUSY | FAILING | HUNG | DOWN | LOOP,
            _ => BUSY | DOWN | LOOP,
        };
        u8::BITS - (flags & counts).leading_zeros()
    }

    pub fn is(&self, behind: Behind) -> bool {
        self.flags.load(Relaxed) & behind as u8 != 0
    }

    /// Returns whether that is news.
    pub fn put_behind(&self, behind: Behind) -> bool {
        self.flags.fetch_or(behind as u8, Relaxed) & behind as u8 == 0
    }

    /// Takes one reason back; returns whether it was there.
    pub fn bring_back(&self, behind: Behind) -> bool {
        let reason = behind as u8;
        self.flags.load(Relaxed) & reason != 0
            && self.flags.fetch_and(!reason, Relaxed) & reason != 0
    }

    /// Returns whether it was the first probe's answer.
    pub fn set_probed(&self) -> bool {
        self.flags.fetch_and(!UNPROBED, Relaxed) & UNPROBED != 0
    }

    /// Asked for time until `until`. Returns whether it had not asked yet.
    pub fn set_busy(&self, until: Tick) -> bool {
        self.busy_until.fetch_max(until, Relaxed);
        self.put_behind(Behind::Busy)
    }

    /// Ends what was asked for with `set_busy`, once it is over.
    pub fn expire_busy(&self, now: Tick) -> bool {
        self.is(Behind::Busy)
            && now >= self.busy_until.load(Relaxed)
            && self.bring_back(Behind::Busy)
    }

    /// The next trial of a failing or hung worker is not before `at`.
    pub fn hold_trial(&self, at: Tick) {
        self.trial_at.store(at, Relaxed);
        self.flags.fetch_and(!TRIAL, Relaxed);
    }

    /// Lets one request through to a failing or hung worker, if its time has come.
    pub fn offer_trial(&self, now: Tick) {
        let flags = self.flags.load(Relaxed);
        if flags & (FAILING | HUNG) != 0 && flags & TRIAL == 0 && now >= self.trial_at.load(Relaxed)
        {
            self.flags.fetch_or(TRIAL, Relaxed);
        }
    }

    /// A request is on its way to the worker; if it was offered a trial, this is it.
    pub fn chosen(&self, next_trial: impl FnOnce() -> Tick) {
        if self.flags.load(Relaxed) & TRIAL != 0 {
            self.hold_trial(next_trial());
        }
    }

    /// A byte came from the worker.
    pub fn hear(&self, now: Tick) {
        if self.heard.load(Relaxed) != now {
            self.heard.store(now, Relaxed);
        }
    }

    pub fn heard(&self) -> Tick {
        self.heard.load(Relaxed)
    }

    /// The head of an answer came. Returns whether it ended a time behind the others.
    pub fn answered(&self, status: StatusCode) -> bool {
        let behind = match status {
            _ if status.is_server_error() => {
                self.fail();
                HUNG | TRIAL
            }
            // What the client did wrong says nothing about how well the worker does.
            _ if status.is_client_error() => HUNG | TRIAL,
            _ => {
                if self.streak.load(Relaxed) != 0 {
                    self.streak.store(0, Relaxed);
                }
                HUNG | FAILING | TRIAL
            }
        };
        self.flags.load(Relaxed) & behind != 0
            && self.flags.fetch_and(!behind, Relaxed) & behind & !TRIAL != 0
    }

    /// An attempt at the worker failed.
    pub fn fail(&self) {
        self.streak.fetch_add(1, Relaxed);
    }

    /// Failures since the last good answer.
    pub fn streak(&self) -> u32 {
        self.streak.load(Relaxed)
    }
}
