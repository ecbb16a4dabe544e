//! A clock that costs one load to read and is right to a tick: what waits is looked over once a tick, so
//! no request needs a timer or asks the kernel for the time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often the clock is moved on, and everything that waits is looked over.
pub const TICK: Duration = Duration::from_millis(250);

/// Ticks since the process first asked; 34 years fit.
pub type Tick = u32;

static STARTED: OnceLock<Instant> = OnceLock::new();
static NOW: AtomicU32 = AtomicU32::new(0);

pub fn now() -> Tick {
    NOW.load(Relaxed)
}

/// Moves the clock on to the real time; every lane does it once a tick.
pub fn advance() -> Tick {
    let elapsed = STARTED.get_or_init(Instant::now).elapsed();
    let tick = (elapsed.as_millis() / TICK.as_millis()) as Tick;
    NOW.fetch_max(tick, Relaxed).max(tick)
}

/// A duration in ticks, rounded up.
pub fn ticks(duration: Duration) -> Tick {
    Tick::try_from(duration.as_millis().div_ceil(TICK.as_millis())).unwrap_or(Tick::MAX)
}

pub fn seconds(ticks: Tick) -> f32 {
    (TICK * ticks).as_secs_f32()
}
