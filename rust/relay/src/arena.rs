//! The sending side: memory, tickets under way, credits of each edge.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::control::{CONTROL_LEN, Control, TICKETS};
use crate::extents::{Extent, Extents};
use crate::ledger::Ledger;
use crate::mapping::{self, Mapping};
use crate::server::{Segments, Server};
use crate::ticket::TicketState;

/// Edges whose full quota has address space of its own; more edges share it. Costs no memory.
const EDGES: u64 = 8;

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

/// An extent to write a payload into, announced to its reader by `place`.
pub struct Grant {
    pub place: Place,
    mapping: Arc<Mapping>,
    start: usize,
    fresh: usize,
}

impl Grant {
    /// The first of `place.len` writable bytes, 64-byte aligned, with their pages present.
    pub fn ready(&self) -> *mut u8 {
        let len = self.place.len as usize;
        if self.fresh > 0 {
            let size = len.next_multiple_of(64);
            self.mapping.populate(
                self.start + size.saturating_sub(self.fresh),
                self.fresh.min(size),
            );
        }
        // SAFETY: the extent lies inside the mapping.
        unsafe { self.mapping.start().add(self.start) }
    }
}

/// No room for a payload now, and who has it.
#[derive(Debug)]
pub struct Full {
    pub edge: String,
    pub held: u64,
    pub limit: u64,
    pub waiting_for: Vec<Waiting>,
}

/// A payload under way.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub key: String,
    pub edge: String,
    pub bytes: u64,
    /// Process that has views of it; `None` where it was not read yet.
    pub holder: Option<i32>,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (edge, held, limit) = (&self.edge, self.held, self.limit);
        write!(f, "edge {edge:?} has {held} of {limit} bytes under way")?;
        for waiting in self.waiting_for.iter().take(4) {
            match waiting.holder {
                Some(pid) => write!(f, "; {:?} is held by process {pid}", waiting.key)?,
                None => write!(f, "; {:?} is not read yet", waiting.key)?,
            }
        }
        match self.waiting_for.len().saturating_sub(4) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for Full {}

enum Memory {
    Extent(Extent),
    Segment(u64),
}

struct Outstanding {
    key: String,
    edge: String,
    bytes: u64,
    generation: u32,
    expires: Instant,
    memory: Memory,
}

struct Books {
    extents: Extents,
    ledger: Ledger,
    free: Vec<u32>,
    outstanding: HashMap<u32, Outstanding>,
    peers: HashMap<u32, i32>,
    next_segment: u64,
}

struct Shared {
    mapping: Arc<Mapping>,
    event: Arc<OwnedFd>,
    segments: Segments,
    books: Mutex<Books>,
    capacity: u64,
}

/// Memory that this process writes payloads into and others of the same user read them from.
pub struct Arena {
    name: String,
    shared: Arc<Shared>,
    _server: Server,
}

impl Arena {
    /// An arena in which each edge may have `limit` bytes under way.
    pub fn new(limit: u64) -> std::io::Result<Self> {
        let limit = limit.max(1 << 20);
        let capacity = limit.saturating_mul(EDGES).min(1 << 40);
        let file = mapping::create(CONTROL_LEN + capacity as usize)?;
        let mapping = Arc::new(Mapping::new(&file)?);
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let segments = Segments::default();
        lock(&segments).insert(0, Arc::new(file));
        let books = Books {
            extents: Extents::new(capacity),
            ledger: Ledger::new(limit),
            free: (0..TICKETS as u32).rev().collect(),
            outstanding: HashMap::new(),
            peers: HashMap::new(),
            next_segment: 1,
        };
        let shared = Arc::new(Shared {
            mapping,
            event,
            segments,
            books: Mutex::new(books),
            capacity,
        });

        let mut secret = [0u8; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("sglang-omni-{:032x}", u128::from_ne_bytes(secret));
        let (joined, lost) = (shared.clone(), shared.clone());
        let server = Server::start(
            &name,
            shared.segments.clone(),
            shared.event.clone(),
            move |number, pid| {
                lock(&joined.books).peers.insert(number, pid);
            },
            move |number| lost.peer_lost(number),
        )?;
        Ok(Self {
            name,
            shared,
            _server: server,
        })
    }

    /// What a reader passes to [`crate::open`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Readable when a ticket changed while someone waits ([`Arena::wait_begin`]).
    pub fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Room for a payload of `len` bytes on an edge. It stays taken until its reader drops its
    /// lease, `revoke` takes it back, or nobody has read it within `keep`.
    pub fn allocate(
        &self,
        edge: &str,
        key: &str,
        len: u64,
        keep: Duration,
    ) -> Result<Grant, AllocateError> {
        let mut books = lock(&self.shared.books);
        let full = |books: &Books| AllocateError::Full(books.full(&self.shared, edge));
        self.shared.collect(&mut books, false);
        if books.ledger.take(edge, len).is_none() {
            // Expired payloads are looked for only when room is short.
            self.shared.collect(&mut books, true);
            if books.ledger.take(edge, len).is_none() {
                return Err(full(&books));
            }
        }
        let undo = |books: &mut Books| books.ledger.give_back(edge, len);
        let Some(ticket) = books.free.pop() else {
            undo(&mut books);
            return Err(full(&books));
        };
        let (memory, mapping, segment, offset, fresh) = if len > books.ledger.limit() {
            match self.own_segment(&mut books, len) {
                Ok((number, mapping)) => (Memory::Segment(number), mapping, number, 0, len),
                Err(error) => {
                    books.free.push(ticket);
                    undo(&mut books);
                    return Err(AllocateError::Io(error));
                }
            }
        } else if let Some(extent) = books.extents.allocate(len) {
            (
                Memory::Extent(extent),
                self.shared.mapping.clone(),
                0,
                extent.start,
                extent.fresh,
            )
        } else {
            books.free.push(ticket);
            undo(&mut books);
            return Err(full(&books));
        };
        let generation = self.shared.control().tickets[ticket as usize].issue();
        let under_way = Outstanding {
            key: key.to_owned(),
            edge: edge.to_owned(),
            bytes: len,
            generation,
            expires: Instant::now() + keep,
            memory,
        };
        books.outstanding.insert(ticket, under_way);
        let start = offset as usize + if segment == 0 { CONTROL_LEN } else { 0 };
        let place = Place {
            segment,
            offset,
            len,
            ticket,
            generation,
        };
        Ok(Grant {
            place,
            mapping,
            start,
            fresh: fresh as usize,
        })
    }

    fn own_segment(&self, books: &mut Books, len: u64) -> std::io::Result<(u64, Arc<Mapping>)> {
        let file = mapping::create(len as usize)?;
        let mapping = Arc::new(Mapping::new(&file)?);
        let number = books.next_segment;
        books.next_segment += 1;
        lock(&self.shared.segments).insert(number, Arc::new(file));
        Ok((number, mapping))
    }

    /// Where a payload stands. `Free` once it is collected, revoked or expired.
    pub fn state(&self, place: &Place) -> TicketState {
        self.shared.control().tickets[place.ticket as usize].state(place.generation)
    }

    /// Takes back every payload under `key` that nobody has read. What is being read stays until it is let go.
    pub fn revoke(&self, key: &str) -> usize {
        let mut books = lock(&self.shared.books);
        let tickets: Vec<u32> = books
            .outstanding
            .iter()
            .filter(|(_, o)| o.key == key)
            .map(|(&ticket, _)| ticket)
            .collect();
        let mut revoked = 0;
        for ticket in tickets {
            let generation = books.outstanding[&ticket].generation;
            if self.shared.control().tickets[ticket as usize].revoke(generation) {
                self.shared.free(&mut books, ticket);
                revoked += 1;
            }
        }
        drop(books);
        if revoked > 0 {
            self.shared.signal();
        }
        revoked
    }

    /// From now on readers signal [`Arena::event`]. Under `pressure` they also copy out.
    pub fn wait_begin(&self, pressure: bool) {
        let control = self.shared.control();
        if pressure {
            control.pressure.fetch_add(1, SeqCst);
        }
        control.waiting.join();
    }

    /// Ends what [`Arena::wait_begin`] began, with the same argument.
    pub fn wait_end(&self, pressure: bool) {
        let control = self.shared.control();
        control.waiting.leave();
        if pressure {
            control.pressure.fetch_sub(1, SeqCst);
        }
    }

    /// `(edge, bytes under way, times refused)` of every edge, after collecting what came back.
    pub fn edges(&self) -> Vec<(String, u64, u64)> {
        let mut books = lock(&self.shared.books);
        self.shared.collect(&mut books, true);
        books.ledger.snapshot()
    }

    /// Payloads under way, after collecting what came back.
    pub fn outstanding(&self) -> usize {
        let mut books = lock(&self.shared.books);
        self.shared.collect(&mut books, true);
        books.outstanding.len()
    }

    /// Whether an edge has so much under way that its reader should not keep views.
    pub fn is_crowded(&self, edge: &str) -> bool {
        let books = lock(&self.shared.books);
        books.ledger.held(edge) > books.ledger.limit() / 2 || books.outstanding.len() > TICKETS / 2
    }

    /// Address space for payloads, in bytes.
    pub fn capacity(&self) -> u64 {
        self.shared.capacity
    }
}

/// Why there is no room.
#[derive(Debug)]
pub enum AllocateError {
    Full(Full),
    Io(std::io::Error),
}

impl Shared {
    fn control(&self) -> &Control {
        // SAFETY: the mapping is page-aligned, at least CONTROL_LEN long, lives as long as `self`,
        // and everything in a Control is atomic, valid for every bit pattern.
        unsafe { &*self.mapping.start().cast::<Control>() }
    }

    fn signal(&self) {
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }

    /// Frees what readers returned and, where `expired`, what nobody read in time.
    fn collect(&self, books: &mut Books, expired: bool) {
        let now = expired.then(Instant::now);
        let tickets = &self.control().tickets;
        let done: Vec<u32> = books
            .outstanding
            .iter()
            .filter(|(ticket, o)| {
                let word = &tickets[**ticket as usize];
                word.collect(o.generation)
                    || (now.is_some_and(|now| now >= o.expires) && word.revoke(o.generation))
            })
            .map(|(&ticket, _)| ticket)
            .collect();
        for ticket in done {
            self.free(books, ticket);
        }
    }

    fn free(&self, books: &mut Books, ticket: u32) {
        let Some(done) = books.outstanding.remove(&ticket) else {
            return;
        };
        books.free.push(ticket);
        books.ledger.give_back(&done.edge, done.bytes);
        match done.memory {
            Memory::Extent(extent) => books.extents.release(extent),
            Memory::Segment(number) => {
                lock(&self.segments).remove(&number);
            }
        }
    }

    /// What a dead process held comes back.
    fn peer_lost(&self, number: u32) {
        let mut books = lock(&self.books);
        books.peers.remove(&number);
        for (&ticket, outstanding) in &books.outstanding {
            self.control().tickets[ticket as usize].give_back(outstanding.generation, number);
        }
        self.collect(&mut books, false);
        drop(books);
        self.signal();
    }
}

impl Books {
    fn full(&self, shared: &Shared, edge: &str) -> Full {
        let waiting_for = self
            .outstanding
            .iter()
            .filter(|(_, o)| o.edge == edge)
            .map(|(&ticket, o)| Waiting {
                key: o.key.clone(),
                edge: o.edge.clone(),
                bytes: o.bytes,
                holder: shared.control().tickets[ticket as usize]
                    .holder(o.generation)
                    .and_then(|number| self.peers.get(&number).copied()),
            })
            .collect();
        Full {
            edge: edge.to_owned(),
            held: self.ledger.held(edge),
            limit: self.ledger.limit(),
            waiting_for,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change to the books is complete before anything that can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
