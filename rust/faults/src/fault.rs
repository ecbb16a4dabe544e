//! A fault that fires: what is done here, and what is left to its site.

use std::io::Error;
use std::time::{Duration, Instant};

use crate::action::Action;
use crate::board::{Board, Hit, Point};
use crate::signals;

/// Time between two looks at the board while a hang lasts.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What the caller does.
#[derive(Debug)]
pub enum Fired {
    /// Waits.
    Wait(Wait),
    /// Fails.
    Error(Error),
    /// Forks a child that sleeps so long.
    Fork(Duration),
    /// What only the site of the point can do.
    Site(SiteAction),
}

/// What only the site of a point can do: see [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteAction {
    Drop,
    Duplicate,
    Corrupt,
    Partial,
}

/// A wait that its caller makes in its own way: so long as [`Wait::next`] returns a time, it sleeps and calls it again.
#[derive(Debug)]
pub struct Wait {
    until: Instant,
    /// The point, and its arming whose end ends the wait too.
    hanging: Option<(&'static Point, u64)>,
}

impl Wait {
    /// How long to sleep now. `None` at the end.
    #[allow(clippy::should_implement_trait)] // its items depend on the time of the call
    pub fn next(&mut self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        let step = match self.hanging {
            None => left,
            Some((point, arming)) if point.arming() == arming => left.min(LOOK_AGAIN),
            Some(_) => return None,
        };
        (!step.is_zero()).then_some(step)
    }

    /// Waits in this thread.
    pub fn block(mut self) {
        while let Some(time) = self.next() {
            std::thread::sleep(time);
        }
    }
}

/// Counts a hit, and does what any process can if it fires. Never waits.
pub fn reach(board: &'static Board, name: &str) -> Option<Fired> {
    let Hit {
        point,
        arming,
        action,
        argument,
    } = board.hit(name)?;
    let time = Duration::from_millis(argument.into());
    let wait = |hanging| {
        let until = Instant::now() + time;
        Some(Fired::Wait(Wait { until, hanging }))
    };
    match action {
        Action::Delay => wait(None),
        Action::Hang => wait(Some((point, arming))),
        Action::Error => Some(Fired::Error(Error::from_raw_os_error(argument as i32))),
        Action::Fork => Some(Fired::Fork(time)),
        Action::Drop => Some(Fired::Site(SiteAction::Drop)),
        Action::Duplicate => Some(Fired::Site(SiteAction::Duplicate)),
        Action::Corrupt => Some(Fired::Site(SiteAction::Corrupt)),
        Action::Partial => Some(Fired::Site(SiteAction::Partial)),
        Action::Interrupts => signals::interrupt(time).err().map(Fired::Error),
        Action::Kill => {
            signals::end_or_stop(libc::SIGKILL);
            None
        }
        Action::Stop => {
            signals::end_or_stop(libc::SIGSTOP);
            None
        }
    }
}
