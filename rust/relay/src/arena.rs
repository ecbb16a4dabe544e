//! The sending side: memory, tickets under way, credits of each edge.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::header::{ArenaHeader, TICKETS, Waiters};
use crate::ledger::Ledger;
use crate::lock;
use crate::mapping::{self, Mapping};
use crate::memory::{Memory, Room};
use crate::process::Process;
use crate::records::{Credit, Records, TicketRecord};
use crate::server::{self, Segments, Server};
use crate::ticket::TicketState;

/// Edges whose full quota has address space and tickets of its own; more edges share it. The space is
/// doubled for what slots have on top of their payloads. It costs no memory.
const EDGES: u64 = 8;
/// The edge that pays for what several targets are to get, until each has its ticket.
const FAN_OUT: &str = "(fan-out)";

/// Where a payload lies: what its reader must know, next to the arena's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// 0 for the arena, otherwise memory of the payload's own.
    pub segment: u64,
    pub offset: u64,
    pub len: u64,
    pub ticket: u32,
    pub generation: u32,
}

/// What a reader is to hear of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub place: Place,
    /// Whether the reader may keep views. Otherwise its edge has too much under way: it should copy.
    pub lend: bool,
}

/// A reserved ticket, and the room to write its payload into before it is published. Dropped unpublished,
/// it takes back itself and nothing else.
pub struct Grant<'a> {
    pub room: Arc<Room>,
    announcement: Announcement,
    state: &'a ArenaState,
    published: bool,
}

impl Grant<'_> {
    /// What was written is there for the reader from now on, unless its key was revoked meanwhile: then the place
    /// is stale.
    pub fn publish(mut self) -> Announcement {
        let Place {
            ticket, generation, ..
        } = self.announcement.place;
        self.state.header().tickets[ticket as usize].publish(generation);
        self.published = true;
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

/// Room for a payload that several readers get, each with a ticket of its own ([`Arena::issue`]).
pub struct FanoutRoom {
    pub room: Arc<Room>,
    _credit: Credit,
}

/// No room for a payload now, and who has it.
#[derive(Debug)]
pub struct Full {
    pub edge: String,
    pub held: u64,
    pub limit: u64,
    pub waiting_for: Vec<OutstandingPayload>,
}

/// A payload under way.
#[derive(Clone, Debug)]
pub struct OutstandingPayload {
    pub key: String,
    pub bytes: u64,
    /// Process that has views of it; `None` where it was not read yet, 0 for one of another pid namespace.
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

/// Why there is no room.
#[derive(Debug)]
pub enum AllocateError {
    Full(Full),
    Io(std::io::Error),
}

struct ArenaState {
    memory: Arc<Memory>,
    records: Records,
    bytes: Ledger,
    /// A ticket is a credit too, or small payloads for a stalled target would use them up.
    tickets: Ledger,
    peers: Mutex<HashMap<u32, i32>>,
    event: Arc<OwnedFd>,
}

/// Memory that this process writes payloads into and others of the same user read them from.
pub struct Arena {
    owner: Process,
    name: String,
    state: Arc<ArenaState>,
    _server: Server,
}

impl Arena {
    /// An arena in which each edge may have `limit` bytes under way.
    pub fn new(limit: u64) -> std::io::Result<Self> {
        let limit = limit.max(1 << 20);
        let capacity = limit.saturating_mul(2 * EDGES).min(1 << 40);
        let file = mapping::create(ArenaHeader::LEN + capacity as usize)?;
        let mapping = Arc::new(Mapping::new(&file)?);
        ArenaHeader::of(&mapping).kept.store(limit / 2, Relaxed);
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let segments = Segments::default();
        lock(&segments).insert(server::ARENA, Arc::new(file));
        let state = Arc::new(ArenaState {
            memory: Arc::new(Memory::new(mapping, capacity, limit, segments.clone())?),
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
                lock(&lost.peers).remove(&number);
                lost.records.reclaim(lost.header(), number);
                lost.signal();
            },
        )?;
        Ok(Self {
            owner: Process::this(),
            name,
            state,
            _server: server,
        })
    }

    /// The memory, as its owner has it mapped.
    pub fn mapping(&self) -> Arc<Mapping> {
        self.state.memory.mapping()
    }

    /// What a reader passes to [`crate::open`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Readable when a ticket changed while someone waits ([`Arena::wait_begin`]).
    pub fn event(&self) -> BorrowedFd<'_> {
        self.state.event.as_fd()
    }

    /// Room for a payload of `len` bytes on an edge, to be written and then published. It stays taken until its
    /// reader drops its lease, `revoke` takes it back, or it was not read within `keep`.
    pub fn allocate(
        &self,
        edge: &str,
        key: &str,
        len: u64,
        keep: Duration,
    ) -> Result<Grant<'_>, AllocateError> {
        let credit = self.state.credit(edge, len)?;
        let room = self.state.memory.room(len).map_err(AllocateError::Io)?;
        self.state.reserve(edge, key, Arc::new(room), credit, keep)
    }

    /// Room for a payload of `len` bytes which several edges are to get: written once, then
    /// [`Arena::issue`]d to each when that has credit.
    ///
    /// What waits for slow edges is bounded like an edge of its own.
    pub fn hold(&self, len: u64) -> Result<FanoutRoom, AllocateError> {
        let (credit, _) = self.state.credit(FAN_OUT, len)?;
        let room = self.state.memory.room(len).map_err(AllocateError::Io)?;
        Ok(FanoutRoom {
            room: Arc::new(room),
            _credit: credit,
        })
    }

    /// One edge's ticket to what is held, which is complete.
    pub fn issue(
        &self,
        held: &FanoutRoom,
        edge: &str,
        key: &str,
        keep: Duration,
    ) -> Result<Announcement, AllocateError> {
        let credit = self.state.credit(edge, held.room.len)?;
        self.state
            .reserve(edge, key, held.room.clone(), credit, keep)
            .map(Grant::publish)
    }

    /// Where a payload stands. `Free` once it is collected, revoked or expired.
    pub fn state(&self, place: &Place) -> TicketState {
        self.state.header().tickets[place.ticket as usize].state(place.generation)
    }

    /// Takes back every payload under `key` that nobody has read. What is being read stays until it is let go.
    pub fn revoke(&self, key: &str) -> usize {
        let records = &self.state.records;
        let revoked = records.sweep(self.state.header(), |under_way| under_way.key == key);
        if revoked > 0 {
            self.state.signal();
        }
        revoked
    }

    /// Takes back one unread payload.
    pub fn revoke_place(&self, place: &Place) -> bool {
        let Some(ticket) = Some(place.ticket).filter(|&ticket| (ticket as usize) < TICKETS) else {
            return false;
        };
        let records = &self.state.records;
        let revoked = records.revoke(self.state.header(), ticket, place.generation);
        if revoked {
            self.state.signal();
        }
        revoked
    }

    /// From now on readers signal [`Arena::event`] when they make room on an edge or, without an edge,
    /// whenever they take or return something.
    pub fn wait_begin(&self, edge: Option<&str>) {
        if let Some(name) = edge {
            self.state.bytes.edge(name).note_wait();
        }
        self.waiters(edge).join();
    }

    /// Ends what [`Arena::wait_begin`] began, with the same argument.
    pub fn wait_end(&self, edge: Option<&str>) {
        // What a forked child leaves is its parent's waiting.
        if self.owner == Process::this() {
            self.waiters(edge).leave();
        }
    }

    fn waiters(&self, edge: Option<&str>) -> &Waiters {
        let number = edge.map(|name| self.state.bytes.edge(name).number());
        self.state.header().waiters(number)
    }

    /// `(edge, bytes under way, how many have waited for room)` of every edge, after collecting what came back.
    pub fn edges(&self) -> Vec<(String, u64, u64)> {
        self.state.collect_all();
        self.state.bytes.snapshot()
    }

    /// Bytes copied into the arena so far, counted once for all readers of a payload.
    pub fn written(&self) -> u64 {
        self.state.memory.written()
    }

    /// Tickets under way, after collecting what came back.
    pub fn outstanding(&self) -> usize {
        self.state.collect_all();
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

    /// Frees what readers returned and what nobody read in time.
    fn collect_all(&self) {
        let now = Instant::now();
        self.records
            .sweep(self.header(), |under_way| now >= under_way.expires);
    }

    /// Credit for a payload, and whether its reader may keep views of it.
    fn credit(&self, edge: &str, len: u64) -> Result<(Credit, bool), AllocateError> {
        self.records.collect(self.header());
        if let Some(credit) = self.try_credit(edge, len) {
            return Ok(credit);
        }
        // Expired payloads and those of readers that died are looked for only when room is short.
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
        // What has its edge to itself is lent, however large.
        let lend = held <= self.bytes.limit() / 2 || held == len;
        Some((credit, lend && count <= self.tickets.limit() / 2))
    }

    /// A payload that its reader keeps views of counts for no more than may be kept for ever, so that
    /// a larger one does not stop its edge.
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
