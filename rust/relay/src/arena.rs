//! The sender's side of the relay: an arena of shared memory, its outstanding tickets and the credit of each edge.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use sglang_omni_faults as faults;

use crate::header::{ArenaHeader, TICKETS, Waiters};
use crate::ledger::Ledger;
use crate::lock;
use crate::mapping::{self, Mapping};
use crate::memory::{Memory, Room};
use crate::process::Process;
use crate::records::{Credit, Records, TicketRecord};
use crate::segments::{ARENA, Place, Segments};
use crate::server::Server;
use crate::ticket::TicketState;

/// So many edges have address space and tickets for their full quota; more edges share these. The space is doubled,
/// because slots are larger than their payloads. Address space costs no memory.
const EDGES: u64 = 8;
/// The edge whose credit a payload for several targets takes until each target has its ticket.
const FAN_OUT: &str = "(fan-out)";

/// Memory that was not used for so long goes back to the kernel.
const IDLE: Duration = Duration::from_secs(10);

/// What the sender tells the reader of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub place: Place,
    /// Whether the reader may keep views. If not, its edge has too much outstanding and it should copy.
    pub lend: bool,
}

/// A reserved ticket, and the room into which its payload is written before the ticket is published. If it is dropped
/// unpublished, it takes back its own ticket and no other.
pub struct Grant<'a> {
    pub room: Arc<Room>,
    announcement: Announcement,
    state: &'a ArenaState,
    published: bool,
}

impl Grant<'_> {
    /// Makes the payload readable. If its key was revoked meanwhile, the place is stale.
    pub fn publish(mut self) -> Announcement {
        let Place {
            ticket, generation, ..
        } = self.announcement.place;
        faults::pause("relay.publish");
        self.state.header().tickets[ticket as usize].publish(generation);
        self.published = true;
        faults::pause("relay.published");
        self.announcement
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let Place {
            ticket, generation, ..
        } = self.announcement.place;
        let ArenaState { records, .. } = self.state;
        if !self.published && records.withdraw(self.state.header(), ticket, generation) {
            self.state.signal();
        }
    }
}

/// Room for a payload with several readers, each of which gets a ticket of its own from [`Arena::issue`].
pub struct FanoutRoom {
    pub room: Arc<Room>,
    _credit: Credit,
}

/// An edge has no credit for a payload now: how much it holds, and the payloads that hold it.
#[derive(Debug)]
pub struct Full {
    pub edge: String,
    pub held: u64,
    pub limit: u64,
    pub waiting_for: Vec<OutstandingPayload>,
}

/// A payload that its reader has not returned.
#[derive(Clone, Debug)]
pub struct OutstandingPayload {
    pub key: String,
    pub bytes: u64,
    /// The process that has views of it: `None` if it is unread, 0 for a process of another pid namespace.
    pub holder: Option<i32>,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (edge, held, limit) = (&self.edge, self.held, self.limit);
        let count = self.waiting_for.len();
        write!(
            f,
            "edge {edge:?} has {held} of {limit} bytes and {count} payloads under way"
        )?;
        for waiting in self.waiting_for.iter().take(4) {
            match waiting.holder {
                Some(0) => {
                    let key = &waiting.key;
                    write!(f, "; {key:?} is held by a process of another pid namespace")?;
                }
                Some(pid) => write!(f, "; {:?} is held by process {pid}", waiting.key)?,
                None => write!(f, "; {:?} is not read yet", waiting.key)?,
            }
        }
        match count.saturating_sub(4) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for Full {}

/// Why no room was allocated.
#[derive(Debug)]
pub enum AllocateError {
    Full(Full),
    Io(std::io::Error),
}

struct ArenaState {
    memory: Arc<Memory>,
    records: Records,
    bytes: Ledger,
    /// Tickets are credits too; otherwise small payloads for a stalled target would use all of them up.
    tickets: Ledger,
    peers: Mutex<HashMap<u32, i32>>,
    event: Arc<OwnedFd>,
}

/// Memory into which this process writes payloads, for other processes of the same user to read.
///
/// A forked child has a copy of it that writes, takes back and waits for nothing: the tickets are its parent's.
pub struct Arena {
    owner: Process,
    name: String,
    state: Arc<ArenaState>,
    _server: Server,
}

impl Arena {
    /// Makes an arena in which each edge may have `limit` bytes outstanding, and at least 1 MiB.
    pub fn new(limit: u64) -> std::io::Result<Self> {
        let limit = limit.max(1 << 20);
        let capacity = limit.saturating_mul(2 * EDGES).min(1 << 40);
        let file = mapping::create(ArenaHeader::LEN + capacity as usize)?;
        let mapping = Arc::new(Mapping::new(&file)?);
        ArenaHeader::of(&mapping).kept.store(limit / 2, Relaxed);
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let segments = Segments::default();
        lock(&segments).insert(ARENA, Arc::new(file));
        let state = Arc::new(ArenaState {
            memory: Arc::new(Memory::new(
                mapping,
                capacity,
                limit,
                segments.clone(),
                IDLE,
            )?),
            records: Records::new(),
            bytes: Ledger::new(limit),
            tickets: Ledger::new(TICKETS as u64 / EDGES),
            peers: Mutex::default(),
            event,
        });

        let mut secret = [0u8; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("sglang-omni-{:032x}", u128::from_ne_bytes(secret));
        let (joined, lost) = (state.clone(), state.clone());
        let server = Server::start(
            &name,
            segments,
            state.event.clone(),
            move |number, pid| {
                lock(&joined.peers).insert(number, pid);
            },
            move |number| {
                faults::pause("relay.reclaim");
                lock(&lost.peers).remove(&number);
                lost.records.reclaim(lost.header(), number);
                lost.signal();
                faults::pause("relay.reclaimed");
            },
        )?;
        Ok(Self {
            owner: Process::this(),
            name,
            state,
            _server: server,
        })
    }

    /// The memory as its owner has mapped it.
    pub fn mapping(&self) -> Arc<Mapping> {
        self.state.memory.mapping()
    }

    /// The name that a reader passes to [`crate::open`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An eventfd, readable when a ticket changed during a wait ([`Arena::wait_begin`]).
    pub fn event(&self) -> BorrowedFd<'_> {
        self.state.event.as_fd()
    }

    /// Reserves room for a payload of `len` bytes on an edge, to be written and then published. The room stays reserved
    /// until its reader drops its lease, `revoke` takes it back, or `keep` has passed and it is still unread.
    pub fn allocate(
        &self,
        edge: &str,
        key: &str,
        len: u64,
        keep: Duration,
    ) -> Result<Grant<'_>, AllocateError> {
        self.check_owner()?;
        let credit = self.state.credit(edge, len)?;
        let room = self.state.memory.room(len).map_err(AllocateError::Io)?;
        self.state.reserve(edge, key, Arc::new(room), credit, keep)
    }

    /// Reserves room for a payload of `len` bytes that goes to several edges: it is written once, then
    /// [issued](Arena::issue) to each edge when that edge has credit.
    ///
    /// All rooms that wait for slow edges share the limit of one edge.
    pub fn hold(&self, len: u64) -> Result<FanoutRoom, AllocateError> {
        self.check_owner()?;
        let (credit, _) = self.state.credit(FAN_OUT, len)?;
        let room = self.state.memory.room(len).map_err(AllocateError::Io)?;
        Ok(FanoutRoom {
            room: Arc::new(room),
            _credit: credit,
        })
    }

    /// Publishes a ticket for one edge to a room whose payload is completely written.
    pub fn issue(
        &self,
        held: &FanoutRoom,
        edge: &str,
        key: &str,
        keep: Duration,
    ) -> Result<Announcement, AllocateError> {
        self.check_owner()?;
        let credit = self.state.credit(edge, held.room.len)?;
        self.state
            .reserve(edge, key, held.room.clone(), credit, keep)
            .map(Grant::publish)
    }

    /// The state of a payload's ticket: `Free` once it is collected, revoked or expired.
    pub fn state(&self, place: &Place) -> TicketState {
        match self.state.header().tickets.get(place.ticket as usize) {
            Some(ticket) => ticket.state(place.generation),
            None => TicketState::Free,
        }
    }

    /// Takes back every unread payload under `key`, which is a payload's own or, without a colon, that of its request:
    /// keys are a request's id, or that, a colon and what of the request it is. Returns how many these are. Payloads
    /// that are being read stay.
    pub fn revoke(&self, key: &str) -> usize {
        if !self.is_owner() {
            return 0;
        }
        faults::pause("relay.revoke");
        let records = &self.state.records;
        let revoked = records.sweep(self.state.header(), |under_way| {
            under_way.key == key || under_way.key.split(':').next() == Some(key)
        });
        if revoked > 0 {
            self.state.signal();
        }
        revoked
    }

    /// Takes back one payload if it is unread, and returns whether it was.
    pub fn revoke_place(&self, place: &Place) -> bool {
        let ticket = place.ticket;
        if ticket as usize >= TICKETS || !self.is_owner() {
            return false;
        }
        faults::pause("relay.revoke");
        let records = &self.state.records;
        let revoked = records.revoke(self.state.header(), ticket, place.generation);
        if revoked {
            self.state.signal();
        }
        revoked
    }

    /// From now on readers signal [`Arena::event`] when they make room on `edge`. Without an edge they signal whenever
    /// they take or return a payload.
    pub fn wait_begin(&self, edge: Option<&str>) {
        if !self.is_owner() {
            return;
        }
        if let Some(name) = edge {
            self.state.bytes.edge(name).note_wait();
        }
        self.waiters(edge).join();
    }

    /// Ends a wait that [`Arena::wait_begin`] began with the same argument.
    pub fn wait_end(&self, edge: Option<&str>) {
        // A forked child that ends its copy of a wait must not end its parent's.
        if self.is_owner() {
            self.waiters(edge).leave();
        }
    }

    fn is_owner(&self) -> bool {
        self.owner == Process::this()
    }

    fn check_owner(&self) -> Result<(), AllocateError> {
        if self.is_owner() {
            return Ok(());
        }
        Err(AllocateError::Io(std::io::Error::other(
            "this arena belongs to the process that this one was forked from: make another one",
        )))
    }

    /// Collects returned payloads, which in a child are its parent's.
    fn collect(&self) {
        if self.is_owner() {
            self.state.collect_all();
        }
    }

    fn waiters(&self, edge: Option<&str>) -> &Waiters {
        let number = edge.map(|name| self.state.bytes.edge(name).number());
        self.state.header().waiters(number)
    }

    /// `(edge, outstanding bytes, number of waits for room)` of every edge, after collecting returned payloads.
    pub fn edges(&self) -> Vec<(String, u64, u64)> {
        self.collect();
        self.state.bytes.snapshot()
    }

    /// Bytes copied into the arena so far; a payload counts once, however many readers it has.
    pub fn written(&self) -> u64 {
        self.state.memory.written()
    }

    /// Number of outstanding tickets, after collecting the returned ones.
    pub fn outstanding(&self) -> usize {
        self.collect();
        self.state.records.len()
    }
}

impl ArenaState {
    fn header(&self) -> &ArenaHeader {
        self.memory.header()
    }

    fn signal(&self) {
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }

    /// Frees returned payloads and unread ones that have expired.
    fn collect_all(&self) {
        let now = Instant::now();
        self.records
            .sweep(self.header(), |under_way| now >= under_way.expires);
    }

    /// Credit for a payload, and whether its reader may keep views of it.
    fn credit(&self, edge: &str, len: u64) -> Result<(Credit, bool), AllocateError> {
        if faults::point("relay.allocate").is_err() {
            return Err(self.full(edge));
        }
        self.records.collect(self.header());
        if let Some(credit) = self.try_credit(edge, len) {
            return Ok(credit);
        }
        // A search for expired payloads and those of dead readers is made only if room is short.
        self.collect_all();
        self.discount_lent(edge);
        self.try_credit(edge, len).ok_or_else(|| self.full(edge))
    }

    fn try_credit(&self, edge: &str, len: u64) -> Option<(Credit, bool)> {
        let (bytes, tickets) = (self.bytes.edge(edge), self.tickets.edge(edge));
        let count = tickets.take(1)?;
        let Some(held) = bytes.take(len) else {
            tickets.give_back(1);
            return None;
        };
        let credit = Credit {
            bytes: bytes.clone(),
            taken: len,
            tickets: tickets.clone(),
        };
        // A payload that is alone on its edge is lent, however large it is.
        let lend = held <= self.bytes.limit() / 2 || held == len;
        Some((credit, lend && count <= self.tickets.limit() / 2))
    }

    /// Lets a payload of which its reader keeps views count for at most half the limit, so that a larger one does not
    /// stop its edge.
    fn discount_lent(&self, edge: &str) {
        self.records.each(self.header(), |under_way, holder| {
            if under_way.lend && holder.is_some() && under_way.edge == edge {
                under_way.credit.reduce(self.bytes.limit() / 2);
            }
        });
    }

    fn reserve(
        &self,
        edge: &str,
        key: &str,
        room: Arc<Room>,
        (credit, lend): (Credit, bool),
        keep: Duration,
    ) -> Result<Grant<'_>, AllocateError> {
        let under_way = TicketRecord {
            key: key.to_owned(),
            edge: edge.to_owned(),
            bytes: room.len,
            expires: Instant::now() + keep,
            lend,
            credit,
            _room: room.clone(),
        };
        let (ticket, generation) = self
            .records
            .reserve(self.header(), under_way)
            .map_err(|_| self.full(edge))?;
        let place = Place {
            segment: room.segment(),
            offset: room.offset,
            len: room.len,
            ticket,
            generation,
        };
        Ok(Grant {
            room,
            announcement: Announcement { place, lend },
            state: self,
            published: false,
        })
    }

    fn full(&self, edge: &str) -> AllocateError {
        let peers = lock(&self.peers);
        let mut waiting_for = Vec::new();
        self.records.each(self.header(), |under_way, holder| {
            if under_way.edge == edge {
                waiting_for.push(OutstandingPayload {
                    key: under_way.key.clone(),
                    bytes: under_way.bytes,
                    holder: holder.and_then(|number| peers.get(&number).copied()),
                });
            }
        });
        AllocateError::Full(Full {
            edge: edge.to_owned(),
            held: self.bytes.edge(edge).held(),
            limit: self.bytes.limit(),
            waiting_for,
        })
    }
}
