//! A worker's health: why it is demoted, and to which tier of workers.
//!
//! A request goes to the best tier that has workers, so a lone worker gets every request, however it is demoted. A
//! worker is excluded only if it is a router that leads back to this one.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use hyper::StatusCode;

use crate::base::clock::Tick;
use crate::fleet::changes;

/// A worker's state, as `/workers` shows it.
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

/// Why a worker is in a lower tier. The higher the value, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Demotion {
    Busy = 4,
    Failing = 8,
    Hung = 16,
    Down = 32,
    /// Excludes a worker, unlike the others: requests to it would come back.
    Loop = 64,
}

const PROBED: u8 = 1;
const TRIAL: u8 = 2;
const BUSY: u8 = Demotion::Busy as u8;
const FAILING: u8 = Demotion::Failing as u8;
const HUNG: u8 = Demotion::Hung as u8;
const DOWN: u8 = Demotion::Down as u8;
const LOOP: u8 = Demotion::Loop as u8;

/// Every lane writes it, though for a request only if something changes. It lies on a cache line apart from the fields
/// that every request changes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct HealthFlags {
    bits: Bits,
    /// Failures since the last good answer.
    streak: AtomicU32,
    /// The tick of the last byte that came from the worker; 0 if none has come since it started.
    heard: AtomicU32,
    busy_until: AtomicU32,
    /// The tick at which the worker was last found hung; 0 for never.
    hung: AtomicU32,
    /// When a failing or hung worker gets its next trial.
    trial_at: AtomicU32,
}

/// The demotions, and beside them what decides whether they count.
#[derive(Debug, Default)]
struct Bits(AtomicU8);

impl Bits {
    fn get(&self) -> u8 {
        self.0.load(Relaxed)
    }

    /// Returns the bits before.
    fn set(&self, bits: u8) -> u8 {
        let before = self.0.fetch_or(bits, Relaxed);
        if before & bits != bits {
            changes::count();
        }
        before
    }

    /// Returns the bits before.
    fn clear(&self, bits: u8) -> u8 {
        let before = self.0.fetch_and(!bits, Relaxed);
        if before & bits != 0 {
            changes::count();
        }
        before
    }
}

impl HealthFlags {
    pub fn health(&self) -> Health {
        let bits = self.bits.get();
        match bits {
            _ if bits & LOOP != 0 => Health::Loop,
            _ if bits & DOWN != 0 => Health::Down,
            _ if bits & TRIAL != 0 => Health::HalfOpen,
            _ if bits & HUNG != 0 => Health::Hung,
            _ if bits & FAILING != 0 => Health::Failing,
            _ if bits & BUSY != 0 => Health::Busy,
            _ if bits & PROBED == 0 => Health::Unknown,
            _ => Health::Up,
        }
    }

    /// The last tier whose workers get requests; workers beyond it get none.
    pub const LAST_TIER: u32 = u8::BITS - DOWN.leading_zeros();

    /// 0 if nothing is known against the worker; the higher, the worse.
    pub fn tier(&self) -> u32 {
        let bits = self.bits.get();
        let counts = match bits & TRIAL {
            0 => BUSY | FAILING | HUNG | DOWN | LOOP,
            _ => BUSY | DOWN | LOOP,
        };
        u8::BITS - (bits & counts).leading_zeros()
    }

    pub fn is(&self, demotion: Demotion) -> bool {
        self.bits.get() & demotion as u8 != 0
    }

    /// Returns whether the worker was not demoted in this way yet.
    pub fn demote(&self, demotion: Demotion) -> bool {
        self.bits.set(demotion as u8) & demotion as u8 == 0
    }

    /// Takes one demotion back; returns whether it was there.
    pub fn restore(&self, demotion: Demotion) -> bool {
        let bit = demotion as u8;
        self.bits.get() & bit != 0 && self.bits.clear(bit) & bit != 0
    }

    /// Notes that a worker that was down is up; returns whether it was down. What its dead process did does not count
    /// any more: nobody may ask the new one for a while, and only an answer would end those demotions. The new one has
    /// answered nothing yet.
    pub fn came_back(&self) -> bool {
        let was_down = self.restore(Demotion::Down);
        if was_down {
            self.streak.store(0, Relaxed);
            self.heard.store(0, Relaxed);
            self.bits.clear(FAILING | HUNG | TRIAL);
        }
        was_down
    }

    /// Whether the worker is down and has been since it joined.
    pub fn never_came_up(&self) -> bool {
        self.bits.get() & (PROBED | DOWN) == DOWN
    }

    /// Returns whether it was the first probe's answer.
    pub fn set_probed(&self) -> bool {
        self.bits.set(PROBED) & PROBED == 0
    }

    /// The worker asked for time until `until`. Returns whether it had not asked yet.
    pub fn set_busy(&self, until: Tick) -> bool {
        self.busy_until.fetch_max(until, Relaxed);
        self.demote(Demotion::Busy)
    }

    /// Ends `Demotion::Busy` once its time is over.
    pub fn expire_busy(&self, now: Tick) -> bool {
        self.is(Demotion::Busy)
            && now >= self.busy_until.load(Relaxed)
            && self.restore(Demotion::Busy)
    }

    /// Puts off the next trial of a failing or hung worker until `at`.
    pub fn hold_trial(&self, at: Tick) {
        self.trial_at.store(at, Relaxed);
        self.bits.clear(TRIAL);
    }

    /// Lets one request through to a failing or hung worker, if its trial is due.
    pub fn offer_trial(&self, now: Tick) {
        let bits = self.bits.get();
        if bits & (FAILING | HUNG) != 0 && bits & TRIAL == 0 && now >= self.trial_at.load(Relaxed) {
            self.bits.set(TRIAL);
        }
    }

    /// Notes that a request is on its way to the worker; if the worker was offered a trial, this is it.
    pub fn chosen(&self, next_trial: impl FnOnce() -> Tick) {
        if self.bits.get() & TRIAL != 0 {
            self.hold_trial(next_trial());
        }
    }

    /// Demotes a worker that hangs, whose trial is due at `trial`. Returns whether that is new.
    pub fn find_hung(&self, now: Tick, trial: Tick) -> bool {
        self.hung.store(now, Relaxed);
        self.hold_trial(trial);
        self.demote(Demotion::Hung)
    }

    pub fn last_hung(&self) -> Tick {
        self.hung.load(Relaxed)
    }

    /// Notes that a byte came from the worker.
    pub fn heard_from(&self, now: Tick) {
        if self.heard.load(Relaxed) != now {
            self.heard.store(now, Relaxed);
        }
    }

    pub fn last_heard(&self) -> Tick {
        self.heard.load(Relaxed)
    }

    /// Notes the head of an answer. Returns whether that ended a demotion.
    pub fn answered(&self, status: StatusCode) -> bool {
        let ended = match status {
            _ if status.is_server_error() => {
                self.fail();
                HUNG | TRIAL
            }
            // A client's mistake says nothing about the worker.
            _ if status.is_client_error() => HUNG | TRIAL,
            _ => {
                if self.streak.load(Relaxed) != 0 {
                    self.streak.store(0, Relaxed);
                }
                HUNG | FAILING | TRIAL
            }
        };
        self.bits.get() & ended != 0 && self.bits.clear(ended) & ended & !TRIAL != 0
    }

    /// Notes that an attempt at the worker failed.
    pub fn fail(&self) {
        self.streak.fetch_add(1, Relaxed);
    }

    /// Failures since the last good answer.
    pub fn streak(&self) -> u32 {
        self.streak.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_comes_back_begins_anew() {
        let flags = HealthFlags::default();
        flags.set_probed();
        for demotion in [Demotion::Failing, Demotion::Hung, Demotion::Down] {
            flags.demote(demotion);
        }
        flags.fail();
        flags.offer_trial(Tick::MAX);
        assert!(flags.came_back());
        assert_eq!(
            (flags.health(), flags.tier(), flags.streak()),
            (Health::Up, 0, 0)
        );
        // One that was not down is what it was.
        flags.demote(Demotion::Failing);
        assert!(!flags.came_back());
        assert_eq!(flags.health(), Health::Failing);
    }
}
