//! How far the router has been asked to stop: what its owner tells all threads.

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stopping {
    No,
    /// Take no more connections, finish what is in flight.
    Drain,
    Now,
}

/// Asks for a drain, if nothing more was asked for yet.
pub fn drain(stopping: &watch::Sender<Stopping>) {
    stopping
        .send_if_modified(|now| std::mem::replace(now, Stopping::Drain.max(*now)) == Stopping::No);
}
