//! The sender's records of its outstanding tickets.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::bitmap::Bitmap;
use crate::header::{ArenaHeader, TICKET_WORDS, TICKETS};
use crate::ledger::Edge;
use crate::lock;
use crate::memory::Room;
use crate::ticket::TicketState;

/// An outstanding ticket: one target's right to one room.
pub struct TicketRecord {
    pub key: String,
    pub edge: String,
    pub bytes: u64,
    pub expires: Instant,
    /// Whether the reader was told that it may keep views.
    pub lend: bool,
    /// Given back when the record is dropped, as the room is.
    pub credit: Credit,
    pub _room: Arc<Room>,
}

/// Bytes and a ticket that were taken from an edge's credit; given back when dropped.
pub struct Credit {
    pub bytes: Arc<Edge>,
    pub taken: u64,
    pub tickets: Arc<Edge>,
}

impl Credit {
    /// Gives back all but `most` bytes.
    pub fn reduce(&mut self, most: u64) {
        self.bytes.give_back(self.taken.saturating_sub(most));
        self.taken = self.taken.min(most);
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.bytes.give_back(self.taken);
        self.tickets.give_back(1);
    }
}

/// Records by ticket number. The one call that moves a ticket's word to `Free` frees its record. Each record has a lock
/// of its own, which is contended only by calls that look at all records: `sweep` and `each`.
pub struct Records {
    free: Bitmap<TICKET_WORDS>,
    records: Box<[Mutex<Option<TicketRecord>>]>,
}

impl Records {
    pub fn new() -> Self {
        Self {
            free: Bitmap::full(),
            records: (0..TICKETS).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Reserves a ticket and returns its number and generation. Returns `under_way` if all tickets are in use.
    pub fn reserve(
        &self,
        header: &ArenaHeader,
        under_way: TicketRecord,
    ) -> Result<(u32, u32), TicketRecord> {
        let Some(number) = self.free.take() else {
            return Err(under_way);
        };
        header.assign(number as usize, under_way.credit.bytes.number());
        let mut record = lock(&self.records[number as usize]);
        *record = Some(under_way);
        // Under the lock, so that a thread that looks at record and ticket sees those of one payload.
        Ok((number, header.tickets[number as usize].reserve()))
    }

    /// Frees a reserved ticket that will not be published. Returns false if it was taken back before.
    pub fn withdraw(&self, header: &ArenaHeader, number: u32, generation: u32) -> bool {
        let withdrawn = header.tickets[number as usize].withdraw(generation);
        if withdrawn {
            self.free(number);
        }
        withdrawn
    }

    /// Frees one unread ticket of that generation. Returns false if it has another generation or was read.
    pub fn revoke(&self, header: &ArenaHeader, number: u32, generation: u32) -> bool {
        let ticket = &header.tickets[number as usize];
        let record = lock(&self.records[number as usize]);
        let is_it = [TicketState::Ready, TicketState::Reserved].contains(&ticket.state(generation));
        let revoked = is_it && record.is_some() && ticket.revoke();
        drop(record);
        if revoked {
            self.free(number);
        }
        revoked
    }

    /// Frees the tickets that readers returned since the last call.
    pub fn collect(&self, header: &ArenaHeader) {
        header.returned.drain(|number| {
            if header.tickets[number as usize].collect() {
                self.free(number);
            }
        });
    }

    /// Frees every returned ticket, and every unread one for which `given_up` is true. Returns how many unread ones.
    pub fn sweep(&self, header: &ArenaHeader, given_up: impl Fn(&TicketRecord) -> bool) -> usize {
        let mut revoked = 0;
        self.free.each_missing(|number| {
            let ticket = &header.tickets[number as usize];
            let record = lock(&self.records[number as usize]);
            let unread = record.as_ref().is_some_and(&given_up) && ticket.revoke();
            drop(record);
            if unread || ticket.collect() {
                self.free(number);
            }
            revoked += usize::from(unread);
        });
        revoked
    }

    /// Returns the tickets that a dead reader holds, and frees them.
    pub fn reclaim(&self, header: &ArenaHeader, holder: u32) {
        self.free.each_missing(|number| {
            header.tickets[number as usize].reclaim(holder);
        });
        self.sweep(header, |_| false);
    }

    /// Calls `see` for every outstanding ticket, with the number of the reader that holds it.
    pub fn each(&self, header: &ArenaHeader, mut see: impl FnMut(&mut TicketRecord, Option<u32>)) {
        self.free.each_missing(|number| {
            if let Some(under_way) = &mut *lock(&self.records[number as usize]) {
                see(under_way, header.tickets[number as usize].holder());
            }
        });
    }

    pub fn len(&self) -> usize {
        TICKETS - self.free.len()
    }

    /// Drops the record of a ticket that the caller has moved to `Free`.
    fn free(&self, number: u32) {
        let done = lock(&self.records[number as usize]).take();
        drop(done); // Its room and credit are free before its ticket is.
        self.free.put(number);
    }
}
