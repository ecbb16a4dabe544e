//! Looking at the sockets a little longer before the thread blocks, where that has lately paid.
//!
//! A thread that blocks lets its core halt, and waking a halted core takes tens of microseconds on a
//! virtual machine: more than a small request costs altogether. So a lane with hardly any request in
//! flight, whose latest waits were nearly all short, does not block at once. Short waits earn the credit
//! that spins in vain use up; slow workers and idle clients never let any arise, and neither does a core
//! shared with the process that is waited for, which a spin only keeps from its work.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::runtime::lane::Shared;

/// How long a spin may last.
const LIMIT: Duration = Duration::from_micros(50);

/// A wait and the work behind it are short if they take less: a spin, or a core's wake-up, and some work.
const SHORT: Duration = Duration::from_micros(150);

/// A look at the sockets takes less; more between two of them, and another thread had the core.
const LOOK: Duration = Duration::from_micros(5);

/// With more requests in flight the next event is near anyway, and the core better spent on it.
const FEW: u64 = 2;

/// What a wait that was not short costs, in short ones: at most one spin in so many is in vain.
const PRICE: i32 = 16;
const MOST_CREDIT: i32 = 4 * PRICE;

/// Short waits in a row before the first spin, and, doubled every time it is in vain, before the next.
const FIRST: i32 = 16;
const LAST: i32 = 1 << 16;

/// One lane's waiting. Used by its thread only; shared because the runtime's hooks must be.
pub struct Spin {
    shared: Arc<Shared>,
    /// The lane's number.
    lane: usize,
    /// Grows whenever something happened on a connection.
    turns: AtomicU32,
    is_spinning: AtomicBool,
    waits: Mutex<Waits>,
    /// Of a task that does nothing: while it is woken, the runtime polls the sockets and does not block.
    idler: OnceLock<Waker>,
}

struct Waits {
    began: Instant,
    /// The count of turns when the wait began.
    turns: u32,
    /// Spins are allowed while there is some.
    credit: i32,
    /// How far below zero the credit falls when it is used up.
    debt: i32,
    spins: bool,
    /// When this spin last looked.
    looked: Instant,
    /// Whether this wait's spin brought nothing: it came to its limit, or the event came only when
    /// another thread had the core.
    in_vain: bool,
}

impl Waits {
    fn new(now: Instant) -> Self {
        Waits {
            began: now,
            turns: 0,
            credit: -FIRST,
            debt: FIRST,
            spins: false,
            looked: now,
            in_vain: false,
        }
    }

    /// Told that something happened at `now`.
    fn event(&mut self, now: Instant) {
        self.in_vain |= self.spins && now - self.looked > LOOK;
    }

    /// Told that nothing is left to run at `now`, with `turns` so far; returns whether to look again
    /// instead of blocking.
    fn looks_again(&mut self, now: Instant, turns: u32, in_flight: u64) -> bool {
        let passed = now - self.began;
        self.looked = now;
        if turns == self.turns {
            if self.spins && passed > LIMIT {
                self.spins = false;
                self.in_vain = true;
            }
            return self.spins;
        }
        (self.began, self.turns) = (now, turns);
        if !std::mem::take(&mut self.in_vain) && passed < SHORT {
            self.credit = MOST_CREDIT.min(self.credit + 1);
            if self.credit == MOST_CREDIT {
                self.debt = FIRST;
            }
        } else if self.credit > PRICE {
            self.credit -= PRICE;
        } else {
            if self.credit > 0 {
                self.debt = LAST.min(2 * self.debt);
            }
            self.credit = -self.debt;
        }
        self.spins = self.credit > 0 && in_flight <= FEW;
        self.spins
    }
}

impl Spin {
    pub fn new(shared: Arc<Shared>, lane: usize) -> Arc<Spin> {
        Arc::new(Spin {
            shared,
            lane,
            turns: AtomicU32::new(0),
            is_spinning: AtomicBool::new(false),
            waits: Mutex::new(Waits::new(Instant::now())),
            idler: OnceLock::new(),
        })
    }

    /// Something happened on a connection.
    pub fn turn(&self) {
        self.turns
            .store(self.turns.load(Relaxed).wrapping_add(1), Relaxed);
        if self.is_spinning.load(Relaxed) {
            self.is_spinning.store(false, Relaxed);
            self.waits.lock().unwrap().event(Instant::now());
        }
    }

    /// The runtime's hook for the moment before it blocks.
    pub fn before_park(&self) {
        let Some(idler) = self.idler.get() else {
            return;
        };
        let mut waits = self.waits.lock().unwrap();
        if waits.looks_again(
            Instant::now(),
            self.turns.load(Relaxed),
            self.shared.metrics.lane(self.lane).in_flight.load(Relaxed),
        ) {
            self.is_spinning.store(true, Relaxed);
            idler.wake_by_ref();
        }
    }

    /// The task that stands for the spin in the runtime's queue; it never ends.
    pub async fn idle(self: Arc<Spin>) {
        poll_fn(|cx| {
            self.idler.get_or_init(|| cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Duration = Duration::from_micros(30);

    struct Lane {
        waits: Waits,
        now: Instant,
        turns: u32,
    }

    impl Lane {
        fn new() -> Self {
            let now = Instant::now();
            Lane {
                waits: Waits::new(now),
                now,
                turns: 0,
            }
        }

        /// An event after `wait`; whether the lane then spins.
        fn event(&mut self, wait: Duration, in_flight: u64) -> bool {
            // The spin looks on until the event.
            let spin = wait.min(LIMIT);
            self.waits
                .looks_again(self.now + spin, self.turns, in_flight);
            self.now += wait;
            self.turns += 1;
            self.waits.event(self.now);
            self.waits.looks_again(self.now, self.turns, in_flight)
        }

        /// Nothing happens; returns how long the spin went on.
        fn silence(&mut self) -> Duration {
            let began = self.now;
            while self.waits.looks_again(self.now, self.turns, 1) {
                self.now += Duration::from_micros(1);
            }
            self.now - began
        }

        /// A wait in vain, and its end; returns how long the lane spun.
        fn long_wait(&mut self) -> Duration {
            let spun = self.silence();
            self.event(Duration::from_millis(1), 1);
            spun
        }

        /// How many short waits it takes until a spin begins.
        fn until_spin(&mut self) -> i32 {
            (1..).find(|_| self.event(EVENT, 1)).unwrap()
        }
    }

    #[test]
    fn spins_begin_after_short_waits_and_are_bounded() {
        let mut lane = Lane::new();
        assert_eq!(lane.until_spin(), FIRST + 1);
        let spun = lane.long_wait();
        assert!(spun >= LIMIT && spun <= LIMIT + Duration::from_micros(2));
        assert_eq!(lane.long_wait(), Duration::ZERO);
    }

    #[test]
    fn slow_workers_and_crowded_lanes_never_spin() {
        let mut lane = Lane::new();
        for number in 0..1000 {
            assert!(!lane.event(Duration::from_millis(1 + number % 20), 1));
        }
        for _ in 0..1000 {
            assert!(!lane.event(EVENT, FEW + 1));
        }
    }

    #[test]
    fn a_rare_long_wait_does_not_end_it() {
        let mut lane = Lane::new();
        lane.until_spin();
        for _ in 0..100 {
            for _ in 0..2 * PRICE {
                assert!(lane.event(EVENT, 1));
            }
            assert!(lane.long_wait() >= LIMIT);
        }
    }

    #[test]
    fn a_shared_core_ends_it() {
        let mut lane = Lane::new();
        lane.until_spin();
        let mut spins = 0;
        for _ in 0..10_000 {
            lane.now += EVENT;
            lane.turns += 1;
            lane.waits.event(lane.now); // Nobody looked for as long as that.
            spins += i32::from(lane.waits.looks_again(lane.now, lane.turns, 1));
        }
        assert!(spins < 10, "{spins}");
    }

    #[test]
    fn spins_in_vain_become_rare_until_they_pay_again() {
        let mut lane = Lane::new();
        let mut debt = FIRST;
        for _ in 0..5 {
            assert_eq!(lane.until_spin(), debt + 1);
            lane.long_wait();
            debt *= 2;
        }
        lane.until_spin();
        while lane.waits.credit < MOST_CREDIT {
            lane.event(EVENT, 1);
        }
        while lane.long_wait() > Duration::ZERO {}
        assert_eq!(lane.until_spin(), 2 * FIRST + 1);
    }
}
