//! The header of an arena's memory: tickets, and whether the sender wants to hear of returns.

use std::sync::atomic::AtomicU32;

use crate::ticket::Ticket;

/// Payloads one arena can have under way at once.
pub const TICKETS: usize = 4095;

#[repr(C, align(64))]
pub struct Control {
    /// How many of the sender's threads wait for a ticket to change; readers signal only then.
    pub waiting: AtomicU32,
    /// Set while the sender lacks room: readers copy out instead of keeping views.
    pub pressure: AtomicU32,
    pub tickets: [Ticket; TICKETS],
}

/// Bytes of the header in the file; data starts here.
pub const CONTROL_LEN: usize = size_of::<Control>().next_multiple_of(1 << 16);
