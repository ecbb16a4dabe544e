//! The board: a file that all processes map, with a slot for each point.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

use crate::action::Action;

const MAGIC: u64 = u64::from_le_bytes(*b"omnifail");
const VERSION: u32 = 1;
const SLOTS: usize = 256;
const LONGEST_NAME: usize = 48;

/// What the file contains. A new file is all zeros, which is a board without points but for the head.
#[repr(C)]
struct Contents {
    magic: AtomicU64,
    version: AtomicU32,
    capacity: AtomicU32,
    /// How often a point was reached for which there was no slot.
    lost: AtomicU64,
    slots: [Point; SLOTS],
}

/// A point's slot, from its first hit or its first arming on.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Point {
    /// Of the name; 0 while the slot is free.
    hash: AtomicU64,
    name: [AtomicU8; LONGEST_NAME],
    /// The name's length, 0 until it is written. All who claim a slot write the same.
    name_len: AtomicU32,
    action: AtomicU32,
    /// The one process that it is armed for, or 0.
    only_pid: AtomicU32,
    fired_pid: AtomicU32,
    /// Changes whenever the point is armed or disarmed, which ends a hang.
    arming: AtomicU64,
    hits: AtomicU64,
    fired: AtomicU64,
    argument: AtomicU32,
    times: AtomicI64,
    /// Hits that are left until the last one that fires; 0 if the point is not armed.
    countdown: AtomicI64,
}

/// A hit that fires.
pub(crate) struct Hit<'a> {
    pub point: &'a Point,
    pub arming: u64,
    pub action: Action,
    pub argument: u32,
}

/// What a schedule wants at a point.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub action: Action,
    /// See [`Action`].
    pub argument: u32,
    /// The hit that fires first, counted from now on: 1 is the next one.
    pub after: u32,
    /// How many hits in a row fire.
    pub times: u32,
    /// The one process whose hits count, as it numbers itself, or 0 for all.
    pub pid: u32,
}

/// What a point has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointRecord {
    pub name: String,
    /// How often it was reached, by any process, armed or not.
    pub hits: u64,
    pub fired: u64,
    /// The process in which it fired last, or 0.
    pub fired_pid: u32,
    /// True while a later hit will fire.
    pub armed: bool,
}

/// A board as this process has mapped it.
#[derive(Debug)]
pub struct Board {
    contents: NonNull<Contents>,
}

// SAFETY: the contents are atomics, and stay mapped until the board is dropped.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Makes a new board in a file that must not be there yet.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.set_len(size_of::<Contents>() as u64)?;
        let board = Self::map(&file)?;
        let contents = board.contents();
        contents.version.store(VERSION, Relaxed);
        contents.capacity.store(SLOTS as u32, Relaxed);
        contents.magic.store(MAGIC, Release);
        Ok(board)
    }

    /// Opens the board that another process created.
    pub fn open(path: &Path) -> Result<Self> {
        let other = || Error::new(ErrorKind::InvalidData, "it is no board of this version");
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != size_of::<Contents>() as u64 {
            return Err(other());
        }
        let board = Self::map(&file)?;
        let Contents {
            magic,
            version,
            capacity,
            ..
        } = board.contents();
        let head = (
            magic.load(Acquire),
            version.load(Relaxed),
            capacity.load(Relaxed),
        );
        if head == (MAGIC, VERSION, SLOTS as u32) {
            Ok(board)
        } else {
            Err(other())
        }
    }

    fn map(file: &File) -> Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses, of a file of that size.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Contents>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let contents = NonNull::new(address.cast()).ok_or_else(Error::last_os_error)?;
        Ok(Self { contents })
    }

    fn contents(&self) -> &Contents {
        // SAFETY: mapped as long as this lives, aligned to a page, and any bytes are a value of each atomic.
        unsafe { self.contents.as_ref() }
    }

    /// Arms a point, whether it was reached before or not. An order that it had is forgotten.
    pub fn arm(&self, name: &str, order: Order) -> Result<()> {
        let wrong = |text: String| Err(Error::new(ErrorKind::InvalidInput, text));
        if name.is_empty() || name.len() > LONGEST_NAME {
            return wrong(format!(
                "{name:?}: a point's name has 1 to {LONGEST_NAME} bytes"
            ));
        }
        if order.after == 0 || order.times == 0 {
            return wrong(format!("{name:?}: after and times count from 1"));
        }
        if order.action.needs_argument() && order.argument == 0 {
            let action = order.action.name();
            return wrong(format!("{name:?}: {action} is nothing without an argument"));
        }
        let Some(point) = self.point(name) else {
            return Err(Error::other(format!(
                "{name:?}: all {SLOTS} slots are taken"
            )));
        };
        point.disarm();
        point.action.store(order.action as u32, Relaxed);
        point.argument.store(order.argument, Relaxed);
        point.only_pid.store(order.pid, Relaxed);
        let (after, times) = (i64::from(order.after), i64::from(order.times));
        point.times.store(times, Relaxed);
        point.countdown.store(after + times - 1, Release);
        Ok(())
    }

    /// Disarms all points, and ends what hangs.
    pub fn disarm(&self) {
        self.contents().slots.iter().for_each(Point::disarm);
    }

    /// All points that were reached or armed. An error if there were more than the board has slots for.
    pub fn points(&self) -> Result<Vec<PointRecord>> {
        let Contents { lost, slots, .. } = self.contents();
        match lost.load(Relaxed) {
            0 => Ok(slots.iter().filter_map(Point::record).collect()),
            lost => Err(Error::other(format!(
                "points without a slot were reached {lost} times: there are {SLOTS}, \
                 for names of at most {LONGEST_NAME} bytes"
            ))),
        }
    }

    /// Counts a hit. `None` unless it fires.
    pub(crate) fn hit(&self, name: &str) -> Option<Hit<'_>> {
        let point = self.point(name);
        if point.is_none() {
            self.contents().lost.fetch_add(1, Relaxed);
        }
        point?.hit()
    }

    /// The slot of a point, claimed now if it has none. `None` if there is none left for it.
    fn point(&self, name: &str) -> Option<&Point> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return None;
        }
        let hash = hash(name);
        let start = hash as usize % SLOTS;
        let (before, after) = self.contents().slots.split_at(start);
        let point = after.iter().chain(before).find(|point| {
            let free = point.hash.compare_exchange(0, hash, AcqRel, Acquire);
            free.is_ok() || free == Err(hash)
        })?;
        if point.name_len.load(Acquire) == 0 {
            for (place, byte) in point.name.iter().zip(name.bytes()) {
                place.store(byte, Relaxed);
            }
            point.name_len.store(name.len() as u32, Release);
        }
        Some(point)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size; nothing that borrows from it is left.
        unsafe { libc::munmap(self.contents.as_ptr().cast(), size_of::<Contents>()) };
    }
}

impl Point {
    fn disarm(&self) {
        self.countdown.store(0, Release);
        self.arming.fetch_add(1, AcqRel);
    }

    pub(crate) fn arming(&self) -> u64 {
        self.arming.load(Acquire)
    }

    fn hit(&self) -> Option<Hit<'_>> {
        self.hits.fetch_add(1, Relaxed);
        if self.countdown.load(Acquire) <= 0 {
            return None;
        }
        let pid = std::process::id();
        if ![0, pid].contains(&self.only_pid.load(Relaxed)) {
            return None;
        }
        // Before the countdown changes: disarming clears that first, so that no hang outlives it.
        let arming = self.arming();
        let next = |left| (left > 0).then_some(left - 1);
        let left = self.countdown.fetch_update(AcqRel, Acquire, next).ok()?;
        if left > self.times.load(Relaxed) {
            return None;
        }
        let action = Action::of(self.action.load(Relaxed))?;
        self.fired_pid.store(pid, Relaxed);
        self.fired.fetch_add(1, Relaxed);
        Some(Hit {
            point: self,
            arming,
            action,
            argument: self.argument.load(Relaxed),
        })
    }

    fn record(&self) -> Option<PointRecord> {
        let len = (self.name_len.load(Acquire) as usize).min(LONGEST_NAME);
        let name: Vec<u8> = self.name[..len]
            .iter()
            .map(|byte| byte.load(Relaxed))
            .collect();
        (len > 0).then(|| PointRecord {
            name: String::from_utf8_lossy(&name).into_owned(),
            hits: self.hits.load(Relaxed),
            fired: self.fired.load(Relaxed),
            fired_pid: self.fired_pid.load(Relaxed),
            armed: self.countdown.load(Relaxed) > 0,
        })
    }
}

/// FNV-1a, the same in every build, and never 0.
fn hash(name: &str) -> u64 {
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, mix).max(1)
}
