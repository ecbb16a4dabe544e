//! Points at which tests have the router fail, in code that must not block its thread.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sglang_omni_faults::{Fired, are_on, fork, reach};

/// A point of async code. Without a board of faults, ready at once.
#[inline(always)]
pub async fn fault_point(name: &'static str) -> io::Result<()> {
    match are_on() {
        true => fired(name).await,
        false => Ok(()),
    }
}

/// A point in code that cannot wait: there, waits and forks have no effect. False if it fails.
#[inline(always)]
pub fn passes(name: &'static str) -> bool {
    !are_on() || !matches!(reach(name), Some(Fired::Error(_)))
}

/// Boxed, so that the code around it reserves no room for it.
#[cold]
fn fired(name: &'static str) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
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
    Reached(Pin<Box<dyn Future<Output = io::Result<()>> + Send>>),
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
