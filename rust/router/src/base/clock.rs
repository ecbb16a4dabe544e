//! A clock that costs one load to read and is right to a tick. Everything that waits is checked once a tick, so
//! no request needs a timer or asks the kernel for the time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often the clock is advanced and everything that waits is checked.
pub const TICK: Duration = Duration::from_millis(250);

/// Ticks since the process first asked, from 1 on; 0 stands for "never". 34 years fit.
pub type Tick = u32;

static STARTED: OnceLock<Instant> = OnceLock::new();
static NOW: AtomicU32 = AtomicU32::new(1);

pub fn now() -> Tick {
    NOW.load(Relaxed)
}

/// Advances the clock to the real time; every lane does this once a tick.
pub fn advance() -> Tick {
    let elapsed = STARTED.get_or_init(Instant::now).elapsed();
    let tick = (elapsed.as_millis() / TICK.as_millis()) as Tick + 1;
    NOW.fetch_max(tick, Relaxed).max(tick)
}

/// A duration in ticks, rounded up.
pub fn ticks(duration: Duration) -> Tick {
    Tick::try_from(duration.as_millis().div_ceil(TICK.as_millis())).unwrap_or(Tick::MAX)
}

/// One lane's view of the clock, renewed once a tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneClock {
    pub now: Tick,
    /// Ticks since the previous look in which the lane did not run.
    missed: Tick,
}

impl LaneClock {
    pub fn next(self, now: Tick) -> LaneClock {
        let missed = now.saturating_sub(self.now + 1);
        LaneClock { now, missed }
    }

    /// The start of a wait that began at `since`, without the ticks that the lane missed: what arrived in them has
    /// not been read yet.
    pub fn excusing(self, since: Tick) -> Tick {
        since.saturating_add(self.missed).min(self.now)
    }
}

pub fn seconds(ticks: Tick) -> f32 {
    (TICK * ticks).as_secs_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_that_a_lane_missed_do_not_count() {
        // The first look of a lane, whose clock may have run for long before.
        let look = LaneClock::default().next(1000);
        assert_eq!(look.excusing(1000), 1000);
        assert_eq!(look.next(1001).excusing(1000), 1000);
        assert_eq!(look.next(1100).excusing(1000), 1099);
        // A wait that began while the lane was about to look.
        assert_eq!(look.next(1100).excusing(1100), 1100);
    }
}
