//! The arenas of other processes that this process has mapped, and the thread that notices when their senders end and
//! enters their pages before they are read.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::peer::{Access, Lease, OpenError, Remote};
use crate::process::Process;
use crate::segments::{ARENA, Place};
use crate::{forks, lock, report};

/// The result of a connection attempt that several threads may wait for.
type Connected = OnceLock<std::result::Result<Arc<Remote>, (ErrorKind, String)>>;

/// Its lock is never held during a call that waits for another process.
struct Remotes {
    /// The process that mapped them; a forked child begins with none.
    owner: Option<Process>,
    /// All mapped arenas by name, also those whose sender is gone while a lease holds them.
    known: BTreeMap<String, Weak<Remote>>,
    /// Senders that are being connected to, each by the first thread that asked.
    connecting: BTreeMap<String, Arc<Connected>>,
    /// Arenas whose sender lives; they stay mapped for its next payloads.
    alive: Vec<Arc<Remote>>,
    /// Wakes the watching thread, once there is one.
    wake: Option<Arc<OwnedFd>>,
}

static REMOTES: Mutex<Remotes> = Mutex::new(Remotes::new(None));

/// Time until the watching thread tries again after an error that is not expected to last.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The arenas of this process, locked.
fn own() -> MutexGuard<'static, Remotes> {
    static IS_HELD: AtomicBool = AtomicBool::new(false);
    if !IS_HELD.load(Acquire) {
        forks::hold_while_forking(|| Box::new(lock(&REMOTES)));
        IS_HELD.store(true, Release);
    }
    let mut remotes = lock(&REMOTES);
    let owner = Some(Process::this());
    if remotes.owner != owner {
        *remotes = Remotes::new(owner);
    }
    remotes
}

impl Remotes {
    const fn new(owner: Option<Process>) -> Self {
        Remotes {
            owner,
            known: BTreeMap::new(),
            connecting: BTreeMap::new(),
            alive: Vec::new(),
            wake: None,
        }
    }

    fn find(&self, name: &str) -> Option<Arc<Remote>> {
        self.known.get(name).and_then(Weak::upgrade)
    }
}

/// The arena of that name if it is mapped already.
fn find(name: &str) -> Option<Arc<Remote>> {
    own().find(name)
}

/// The arena of that name, mapped now if it was not before. Waits only for its sender.
fn get(name: &str) -> Result<Arc<Remote>> {
    let mut remotes = own();
    if let Some(remote) = remotes.find(name) {
        return Ok(remote);
    }
    let wake = match &remotes.wake {
        Some(wake) => wake.clone(),
        None => remotes.wake.insert(watcher()?).clone(),
    };
    let connecting = remotes.connecting.entry(name.to_owned()).or_default();
    let connecting = connecting.clone();
    drop(remotes);

    let connect = || Remote::connect(name, wake.clone()).map(Arc::new);
    let outcome = connecting.get_or_init(|| connect().map_err(|e| (e.kind(), e.to_string())));

    let mut remotes = own();
    let is_ours = |outcome: &Arc<Connected>| Arc::ptr_eq(outcome, &connecting);
    if remotes.connecting.get(name).is_some_and(is_ours) {
        remotes.connecting.remove(name);
        if let Ok(remote) = outcome {
            let weak = Arc::downgrade(remote);
            remotes.known.insert(name.to_owned(), weak);
            remotes.alive.push(remote.clone());
            drop(remotes);
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        }
    }
    outcome
        .clone()
        .map_err(|(kind, text)| Error::new(kind, text))
}

/// Takes the ticket of a place that a sender announced. May wait for the sender, for a few seconds.
pub fn open(name: &str, place: &Place, access: Access) -> std::result::Result<Lease, OpenError> {
    let remote = get(name).map_err(OpenError::Unreachable)?;
    remote.open(place, access)
}

/// Takes the ticket without waiting. `None` if the sender must be asked for memory first; call [`open`] then.
pub fn try_open(
    name: &str,
    place: &Place,
    access: Access,
) -> std::result::Result<Option<Lease>, OpenError> {
    match find(name) {
        Some(remote) if place.segment == ARENA => remote.open(place, access).map(Some),
        _ => Ok(None),
    }
}

fn watcher() -> Result<Arc<OwnedFd>> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let woken = wake.clone();
    std::thread::Builder::new()
        .name("relay-remotes".into())
        .spawn(move || {
            let mut well = true;
            loop {
                let watched = watch(&woken);
                if let Err(error) = watched {
                    if well {
                        report("cannot watch for the end of senders", error);
                    }
                    std::thread::sleep(LOOK_AGAIN);
                }
                well = watched.is_ok();
            }
        })?;
    Ok(wake)
}

/// Waits until a sender ends, an arena grows or a new one comes; lets go of the arenas of senders that ended.
fn watch(wake: &OwnedFd) -> rustix::io::Result<()> {
    let watched = own().alive.clone();
    for remote in &watched {
        remote.enter_pages();
    }
    let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
    let mut whose = vec![];
    for (index, remote) in watched.iter().enumerate() {
        // A child that the sender forked may keep its connections open, so that its process is watched too.
        fds.push(PollFd::new(&*remote.connection.stream, PollFlags::RDHUP));
        whose.push(index);
        if let Some(alive) = &remote.connection.peer.alive {
            fds.push(PollFd::new(alive, PollFlags::IN));
            whose.push(index);
        }
    }
    match poll(&mut fds, None) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(error) => return Err(error),
    }
    let _ = rustix::io::read(wake, &mut [0u8; 8]);
    let ended = fds[1..].iter().zip(whose);
    let gone: Vec<&Arc<Remote>> = ended
        .filter(|(fd, _)| !fd.revents().is_empty())
        .map(|(_, index)| &watched[index])
        .collect();
    if !gone.is_empty() {
        let mut remotes = own();
        remotes
            .alive
            .retain(|alive| !gone.iter().any(|gone| Arc::ptr_eq(alive, gone)));
        // `watched` still counts as a holder here: an arena without leases is forgotten the next time.
        remotes.known.retain(|_, remote| remote.strong_count() > 0);
    }
    Ok(())
}

/// Whether an arena is mapped here.
#[cfg(all(test, not(any(miri, feature = "loom"))))]
pub fn is_mapped(name: &str) -> bool {
    find(name).is_some()
}
