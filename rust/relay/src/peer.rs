//! The reading side: an arena of another process, mapped once, and leases on its extents.

use std::fmt;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::getuid;

use crate::arena::Place;
use crate::control::{Control, TICKETS};
use crate::mapping::Mapping;
use crate::process::Process;
use crate::server::{self, ANSWER_LEN};
use crate::{lock, remotes};

/// Why a place cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The sender is gone, or will not talk to us.
    Unreachable(std::io::Error),
    /// Read before, revoked, or expired.
    Stale,
    /// The place is not inside the sender's memory.
    Malformed,
}

impl fmt::Display for ReadError {
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

impl std::error::Error for ReadError {}

/// For debugging: whoever writes to a received payload, which others may be reading, crashes there.
static READ_ONLY: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("SGLANG_OMNI_RELAY_READ_ONLY").is_some_and(|on| on == "1"));

/// A sender's arena as seen from here.
pub struct Remote {
    owner: Process,
    number: u32,
    mapping: Arc<Mapping>,
    event: OwnedFd,
    /// Open as long as anything here is used: its end tells the sender that nothing is held any more.
    pub stream: UnixStream,
    /// One question at a time.
    asking: Mutex<()>,
    /// Bytes at the start of the data whose pages are in this process's table, or are about to be.
    entered: AtomicU64,
}

impl Remote {
    pub fn connect(name: &str) -> std::io::Result<Self> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        if socket_peercred(&stream)?.uid != getuid() {
            return Err(std::io::Error::other("it belongs to another user"));
        }
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
        let (number, mut files) = ask(&stream, server::ARENA)?;
        let (Some(event), Some(file)) = (files.pop(), files.pop()) else {
            return Err(std::io::Error::other("it sent no memory"));
        };
        let mapping = Arc::new(Mapping::new(&file)?);
        if mapping.len() < Control::LEN {
            return Err(std::io::Error::other("its memory is too small"));
        }
        if *READ_ONLY {
            mapping.forbid_writes(Control::LEN)?;
        }
        Ok(Self {
            owner: Process::this(),
            number,
            mapping,
            event,
            stream,
            asking: Mutex::new(()),
            entered: AtomicU64::new(0),
        })
    }

    fn control(&self) -> &Control {
        Control::of(&self.mapping)
    }
}

/// Asks for a segment: our number with this sender, and the files that came along.
fn ask(mut stream: &UnixStream, segment: u64) -> std::io::Result<(u32, Vec<OwnedFd>)> {
    stream.write_all(&segment.to_le_bytes())?;
    loop {
        let mut answer = [0; ANSWER_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut answer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let files = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if got.bytes != answer.len() {
            return Err(std::io::Error::other("it closed the connection"));
        }
        // An answer that came too late for an earlier question is passed over.
        if answer[5..] != segment.to_le_bytes() {
            continue;
        }
        if answer[0] != 1 {
            return Err(std::io::Error::other(
                "it does not have that memory any more",
            ));
        }
        let number = u32::from_le_bytes([answer[1], answer[2], answer[3], answer[4]]);
        return Ok((number, files));
    }
}

/// The right to read one payload. Dropping it, in whatever thread, gives the extent back.
pub struct Lease {
    remote: Arc<Remote>,
    /// The mapping the payload is in: the arena's, or one of its own.
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
    ticket: usize,
    generation: u32,
}

/// Takes the ticket of a place a sender announced.
pub fn open(name: &str, place: &Place) -> Result<Lease, ReadError> {
    let remote = remotes::get(name).map_err(ReadError::Unreachable)?;
    if place.ticket as usize >= TICKETS {
        return Err(ReadError::Malformed);
    }
    let (offset, len) = (usize::try_from(place.offset), usize::try_from(place.len));
    let (Ok(offset), Ok(len)) = (offset, len) else {
        return Err(ReadError::Malformed);
    };
    let ticket = place.ticket as usize;
    if !remote.control().tickets[ticket].take(place.generation, remote.number) {
        return Err(ReadError::Stale);
    }
    // From here on the ticket is ours to give back, whatever happens.
    let mut lease = Lease {
        mapping: remote.mapping.clone(),
        remote,
        start: 0,
        len: 0,
        ticket,
        generation: place.generation,
    };
    let base = if place.segment == server::ARENA {
        Control::LEN
    } else {
        let asking = lock(&lease.remote.asking);
        let asked = ask(&lease.remote.stream, place.segment);
        drop(asking);
        let (_, files) = asked.map_err(ReadError::Unreachable)?;
        let file = files.first().ok_or(ReadError::Malformed)?;
        let unreachable = |errno: rustix::io::Errno| ReadError::Unreachable(errno.into());
        lease.mapping = Arc::new(Mapping::new(file).map_err(unreachable)?);
        if *READ_ONLY {
            lease.mapping.forbid_writes(0).map_err(unreachable)?;
        }
        0
    };
    let end = base
        .checked_add(offset)
        .and_then(|start| start.checked_add(len));
    if end.is_none_or(|end| end > lease.mapping.len()) {
        return Err(ReadError::Malformed);
    }
    lease.start = base + offset;
    lease.len = len;
    let control = lease.remote.control();
    if control.taken(ticket, place.len) {
        lease.remote.signal();
    }
    if control.present.load(Relaxed) > lease.remote.entered.load(Relaxed) {
        remotes::wake();
    }
    Ok(lease)
}

impl Remote {
    /// Enters the pages that the sender has provided since the last time, all of which it will use.
    pub fn enter_pages(&self) {
        let present = self.control().present.load(Acquire);
        let start = self.entered.swap(present, AcqRel);
        let end = Control::LEN.saturating_add(present as usize);
        if start < present && end <= self.mapping.len() {
            let len = (present - start) as usize;
            self.mapping.enter(Control::LEN + start as usize, len);
        }
    }

    /// Tells the sender, which waits for that, that a ticket changed.
    fn signal(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Lease {
    /// The sender's arena as mapped here; `None` for a payload in memory of its own.
    pub fn arena(&self) -> Option<Arc<Mapping>> {
        Arc::ptr_eq(&self.mapping, &self.remote.mapping).then(|| self.mapping.clone())
    }

    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `open` checked that start and len lie in the mapping.
        unsafe { self.mapping.start().add(self.start) }
    }

    #[allow(clippy::len_without_is_empty)] // a payload has a header, it is never empty
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A copy in a forked child: it is the parent that has the views.
        if self.remote.owner != Process::this() {
            return;
        }
        let control = self.remote.control();
        if control.give_back(self.ticket, self.generation, self.remote.number) {
            self.remote.signal();
        }
    }
}
