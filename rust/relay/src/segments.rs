//! What the sender of an arena and its readers both know of its memory: its parts, and where a payload lies.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Files that peers may ask for, by number.
pub type Segments = Arc<Mutex<HashMap<u64, Arc<OwnedFd>>>>;

/// The number of the arena's own memory.
pub const ARENA: u64 = 0;

/// Bytes of the answer to a reader that asks for a segment.
pub const ANSWER_LEN: usize = 13;

/// Where a payload lies. With the arena's name, this is all that its reader must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// 0 for the arena, otherwise the number of a segment that holds only this payload.
    pub segment: u64,
    pub offset: u64,
    pub len: u64,
    pub ticket: u32,
    pub generation: u32,
}
