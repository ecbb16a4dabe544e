//! Points at which tests have the router fail, in code that must not block its thread.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sglang_omni_faults::{Fired, are_on, fork, reach};

/// What a point does once it is awaited. Boxed, so that the code around it reserves no room for it.
pub type PointFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A point of async code. None without a board of faults: a future that is ready at once would still cost each request
/// its place in the future around it.
#[inline(always)]
pub fn fault_point(name: &'static str) -> Option<PointFuture> {
    are_on().then(|| fired(name))
}

/// A point in code that cannot wait: there, waits and forks have no effect. False if it fails.
#[inline(always)]
pub fn passes(name: &'static str) -> bool {
    !are_on() || !matches!(reach(name), Some(Fired::Error(_)))
}

#[cold]
fn fired(name: &'static str) -> PointFuture {
    Box::pin(async move {
        match reach(name) {
            Some(Fired::Wait(mut wait)) => {
                while let Some(time) = wait.next() {
                    tokio::time::sleep(time).await;
                }
                Ok(())
            }
            Some(Fired::Error(error)) => Err(error),
            Some(Fired::Fork(time)) => fork(time),
            None | Some(Fired::Site(_)) => Ok(()),
        }
    })
}

/// A point in code that is polled.
#[derive(Default)]
pub enum PolledPoint {
    #[default]
    Ahead,
    Reached(PointFuture),
    Passed,
}

impl PolledPoint {
    /// Counts one hit, however often it is polled before [`PolledPoint::again`]. Pending while a fault waits.
    #[inline(always)]
    pub fn poll(&mut self, name: &'static str, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match are_on() {
            true => self.poll_fired(name, cx),
            false => Poll::Ready(Ok(())),
        }
    }

    #[cold]
    fn poll_fired(&mut self, name: &'static str, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Ahead = self {
            *self = Self::Reached(fired(name));
        }
        if let Self::Reached(waiting) = self {
            let outcome = ready!(waiting.as_mut().poll(cx));
            *self = Self::Passed;
            outcome?;
        }
        Poll::Ready(Ok(()))
    }

    /// The next poll counts again.
    #[inline(always)]
    pub fn again(&mut self) {
        if let Self::Passed = self {
            *self = Self::Ahead;
        }
    }
}
