//! Arenas of other processes that this one has mapped, and the thread that notices when they end and
//! enters their pages here before they are read.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::lock;
use crate::peer::Remote;
use crate::process::Process;

#[derive(Default)]
struct Remotes {
    /// Whose they are: a forked child begins with none.
    owner: Option<Process>,
    /// Also those whose sender is gone, for as long as a lease holds them.
    known: HashMap<String, Weak<Remote>>,
    /// Those whose sender lives stay mapped, for what it sends next.
    alive: Vec<Arc<Remote>>,
    /// Wakes the watching thread, once there is one.
    wake: Option<Arc<OwnedFd>>,
}

static REMOTES: LazyLock<Mutex<Remotes>> = LazyLock::new(Mutex::default);

/// The arena of that name, mapped now if it was not before.
pub fn get(name: &str) -> std::io::Result<Arc<Remote>> {
    let mut remotes = lock(&REMOTES);
    let owner = Some(Process::this());
    if remotes.owner != owner {
        *remotes = Remotes {
            owner,
            ..Remotes::default()
        };
    }
    if let Some(remote) = remotes.known.get(name).and_then(Weak::upgrade) {
        return Ok(remote);
    }
    if remotes.wake.is_none() {
        remotes.wake = Some(watcher()?);
    }
    let remote = Arc::new(Remote::connect(name)?);
    remotes
        .known
        .insert(name.to_owned(), Arc::downgrade(&remote));
    remotes.alive.push(remote.clone());
    drop(remotes);
    wake();
    Ok(remote)
}

/// Has the thread look at all arenas: there is a new one, or one has grown.
pub fn wake() {
    if let Some(wake) = &lock(&REMOTES).wake {
        let _ = rustix::io::write(&**wake, &1u64.to_ne_bytes());
    }
}

fn watcher() -> std::io::Result<Arc<OwnedFd>> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let woken = wake.clone();
    std::thread::Builder::new()
        .name("relay-remotes".into())
        .spawn(move || while watch(&woken) {})?;
    Ok(wake)
}

/// Waits for a sender's end, growth or a new one, and lets go of those that are gone. False where it cannot wait.
fn watch(wake: &OwnedFd) -> bool {
    let watched = lock(&REMOTES).alive.clone();
    for remote in &watched {
        remote.enter_pages();
    }
    let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
    fds.extend(
        watched
            .iter()
            .map(|remote| PollFd::new(&remote.stream, PollFlags::RDHUP)),
    );
    match poll(&mut fds, None) {
        Ok(_) => {}
        Err(error) => return error == rustix::io::Errno::INTR,
    }
    let _ = rustix::io::read(wake, &mut [0u8; 8]);
    let gone = |fd: &PollFd<'_>| !fd.revents().is_empty();
    if fds[1..].iter().any(gone) {
        let mut remotes = lock(&REMOTES);
        for (remote, fd) in watched.iter().zip(&fds[1..]) {
            if gone(fd) {
                remotes.alive.retain(|alive| !Arc::ptr_eq(alive, remote));
            }
        }
        // The watched ones are counted here as well: those that nobody holds are forgotten the next time.
        remotes.known.retain(|_, remote| remote.strong_count() > 0);
    }
    true
}

/// Whether an arena is mapped here.
#[cfg(all(test, not(feature = "loom")))]
pub fn is_mapped(name: &str) -> bool {
    let remotes = lock(&REMOTES);
    remotes
        .known
        .get(name)
        .is_some_and(|remote| remote.strong_count() > 0)
}
