//! Tells all threads how far the router has been asked to stop.

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stopping {
    No,
    /// Take no more connections, finish what is in flight.
    Drain,
    Now,
}

/// Asks for a drain, unless a drain or more was asked for already.
pub fn drain(stopping: &watch::Sender<Stopping>) {
    stopping
        .send_if_modified(|now| std::mem::replace(now, Stopping::Drain.max(*now)) == Stopping::No);
}
