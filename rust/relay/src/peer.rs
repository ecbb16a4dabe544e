//! The reader's side of the relay: the arena of another process, mapped once, and leases on its payloads.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};

use rustix::io::Errno;
use sglang_omni_faults as faults;

use crate::connection::Connection;
use crate::header::{ArenaHeader, TICKETS};
use crate::mapping::Mapping;
use crate::private_view::PrivateView;
use crate::process::Process;
use crate::segments::{ARENA, Place};
use crate::ticket::TicketState;

#[cfg(all(test, not(any(miri, feature = "loom"))))]
mod race_tests;

/// Why a place cannot be read.
#[derive(Debug)]
pub enum OpenError {
    /// The sender is gone or does not answer.
    Unreachable(std::io::Error),
    /// The payload was read before, revoked, or has expired.
    Stale,
    /// The place is not inside the sender's memory.
    Malformed,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(
                f,
                "the sender's memory cannot be reached, is it gone? ({error})"
            ),
            Self::Stale => write!(
                f,
                "stale read: the slot was read before, taken back or has expired"
            ),
            Self::Malformed => write!(f, "the slot does not lie in the sender's memory"),
        }
    }
}

impl std::error::Error for OpenError {}

/// For debugging: a write to a received payload, which other processes may be reading, crashes.
static READ_ONLY: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("SGLANG_OMNI_RELAY_READ_ONLY").is_some_and(|on| on == "1"));

/// So many readers of one payload in this process have a private view that is kept for later payloads; further readers
/// map the payload anew.
const PRIVATE_VIEWS: usize = 4;

/// A sender's arena as mapped in this process.
pub struct Remote {
    owner: Process,
    number: u32,
    mapping: Arc<Mapping>,
    /// The file that `mapping` maps.
    file: OwnedFd,
    event: OwnedFd,
    /// Has this process's thread look at its arenas.
    look: Arc<OwnedFd>,
    pub connection: Connection,
    /// Bytes at the start of the data whose pages are in this process's page table, or are about to be.
    entered: AtomicU64,
    /// One view for each reader in this process of the same payload, made on first use; `None` if it cannot be made.
    private: [OnceLock<Option<PrivateView>>; PRIVATE_VIEWS],
}

impl Remote {
    /// Maps the arena of that name. `look` is signalled when the arena has grown.
    pub fn connect(name: &str, look: Arc<OwnedFd>) -> std::io::Result<Self> {
        let connection = Connection::connect(name)?;
        let (number, mut files) = connection.ask(ARENA)?;
        let (Some(event), Some(file)) = (files.pop(), files.pop()) else {
            return Err(std::io::Error::other("it sent no memory"));
        };
        let mapping = Arc::new(Mapping::new(&file)?);
        if mapping.len() < ArenaHeader::LEN {
            return Err(std::io::Error::other("its memory is too small"));
        }
        if *READ_ONLY {
            mapping.forbid_writes(ArenaHeader::LEN)?;
        }
        Ok(Self {
            owner: Process::this(),
            number,
            mapping,
            file,
            event,
            look,
            connection,
            entered: AtomicU64::new(0),
            private: Default::default(),
        })
    }

    fn header(&self) -> &ArenaHeader {
        ArenaHeader::of(&self.mapping)
    }
}

/// The right to read one payload. Dropping it, in any thread, returns the ticket.
pub struct Lease {
    remote: Arc<Remote>,
    /// The mapping that contains the payload: the arena's, a private view of it, or one of its own.
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
    /// The number of the remote's private view whose mapping this is, and in which these bytes are taken.
    private_view: Option<usize>,
    ticket: usize,
    generation: u32,
}

/// Which processes see a reader's writes to a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This is the payload's only reader: writes go to the shared memory.
    Sole,
    /// Others read the same memory: a page that is written to becomes private to this lease.
    CopyOnWrite,
}

impl Remote {
    /// Takes the ticket of a place. Waits for the sender only if the payload has a segment of its own.
    pub fn open(self: Arc<Self>, place: &Place, access: Access) -> Result<Lease, OpenError> {
        if place.ticket as usize >= TICKETS {
            return Err(OpenError::Malformed);
        }
        let (offset, len) = (usize::try_from(place.offset), usize::try_from(place.len));
        let (Ok(offset), Ok(len)) = (offset, len) else {
            return Err(OpenError::Malformed);
        };
        faults::point("relay.open").map_err(OpenError::Unreachable)?;
        let (ticket, generation) = (place.ticket as usize, place.generation);
        let segment = match place.segment {
            ARENA => None,
            // Asked for before the ticket is taken: a taken ticket is spent even if this fails.
            number => Some(self.segment(number, ticket, generation)?),
        };
        if !self.header().tickets[ticket].take(generation, self.number) {
            return Err(OpenError::Stale);
        }
        // From here on the lease returns the ticket, even if an error follows.
        let mut lease = Lease {
            mapping: self.mapping.clone(),
            remote: self,
            start: 0,
            len: 0,
            private_view: None,
            ticket,
            generation,
        };
        faults::point("relay.take").map_err(OpenError::Unreachable)?;
        let (base, file, size) = match &segment {
            Some((file, mapping)) => (0, file, mapping.len()),
            None => (ArenaHeader::LEN, &lease.remote.file, lease.mapping.len()),
        };
        let start = base.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(len));
        let (Some(start), Some(_)) = (start, end.filter(|&end| end <= size)) else {
            return Err(OpenError::Malformed);
        };
        (lease.start, lease.len) = (start, len);
        let mut views = 0..PRIVATE_VIEWS;
        if access == Access::CopyOnWrite
            && segment.is_none()
            && let Some((number, view)) = views.find_map(|number| {
                let view = lease.remote.private_view(number)?;
                view.take(start).then_some((number, view))
            })
        {
            let wanted = view.entered.load(Relaxed) == 0;
            lease.mapping = view.mapping.clone();
            lease.private_view = Some(number);
            if wanted {
                lease.remote.wake();
            }
        } else if access == Access::CopyOnWrite {
            let (mapping, start) = Mapping::private(file, start, len).map_err(unreachable)?;
            (lease.mapping, lease.start) = (Arc::new(mapping), start);
        } else if let Some((_, mapping)) = segment {
            lease.mapping = Arc::new(mapping);
        }
        if *READ_ONLY && !lease.is_in_arena() {
            lease.mapping.forbid_writes(0).map_err(unreachable)?;
        }
        let header = lease.remote.header();
        if header.taken(ticket, place.len) {
            lease.remote.signal();
        }
        if header.present.load(Relaxed) > lease.remote.entered.load(Relaxed) {
            lease.remote.wake();
        }
        Ok(lease)
    }

    /// Asks the sender for the segment of one payload, and maps it.
    fn segment(
        &self,
        number: u64,
        ticket: usize,
        generation: u32,
    ) -> Result<(OwnedFd, Mapping), OpenError> {
        let is_ready = || self.header().tickets[ticket].state(generation) == TicketState::Ready;
        if !is_ready() {
            return Err(OpenError::Stale);
        }
        let asked = self.connection.ask(number);
        // The sender drops a segment with its payload.
        let (_, files) = asked.map_err(|error| match is_ready() {
            true => OpenError::Unreachable(error),
            false => OpenError::Stale,
        })?;
        let file = files.into_iter().next().ok_or(OpenError::Malformed)?;
        let mapping = Mapping::new(&file).map_err(unreachable)?;
        Ok((file, mapping))
    }
}

fn unreachable(error: Errno) -> OpenError {
    OpenError::Unreachable(error.into())
}

impl Remote {
    /// Enters the pages that the sender has provided since the last call; it will use all of them.
    pub fn enter_pages(&self) {
        let present = self.header().present.load(Acquire);
        let enter = |mapping: &Mapping, entered: &AtomicU64| {
            let start = entered.swap(present, AcqRel);
            let end = ArenaHeader::LEN.saturating_add(present as usize);
            if start < present && end <= mapping.len() {
                let len = (present - start) as usize;
                mapping.enter(ArenaHeader::LEN + start as usize, len);
            }
        };
        enter(&self.mapping, &self.entered);
        for view in self.private.iter().filter_map(OnceLock::get).flatten() {
            enter(&view.mapping, &view.entered);
        }
    }

    fn private_view(&self, number: usize) -> Option<&PrivateView> {
        let make = || PrivateView::new(&self.file, self.mapping.len());
        self.private[number].get_or_init(make).as_ref()
    }

    /// Has pages entered that the sender has provided.
    fn wake(&self) {
        let _ = rustix::io::write(&self.look, &1u64.to_ne_bytes());
    }

    /// Tells the waiting sender that a ticket changed.
    fn signal(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Lease {
    /// The sender's arena as mapped here. `None` for a payload in a segment or a private mapping.
    pub fn arena(&self) -> Option<Arc<Mapping>> {
        self.is_in_arena().then(|| self.mapping.clone())
    }

    fn is_in_arena(&self) -> bool {
        Arc::ptr_eq(&self.mapping, &self.remote.mapping)
    }

    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `open` checked that start and len lie in the mapping.
        unsafe { self.mapping.start().add(self.start) }
    }

    #[allow(clippy::len_without_is_empty)] // a payload has a header and is never empty
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a forked child this is a copy; the parent has the views.
        if self.remote.owner != Process::this() {
            return;
        }
        faults::pause("relay.give_back");
        if let Some(number) = self.private_view
            && let Some(view) = self.remote.private_view(number)
        {
            view.give_back(self.start, self.len);
        }
        let header = self.remote.header();
        if header.give_back(self.ticket, self.generation, self.remote.number) {
            self.remote.signal();
        }
    }
}
