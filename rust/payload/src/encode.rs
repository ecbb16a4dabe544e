//! Writes a payload: a plan of where everything goes, then one copy of each byte.

use std::fmt;

use crate::copy::copy;
use crate::extent;
use crate::{
    ALIGN, BUFFER_ROW_LEN, DType, Framework, HEADER_LEN, MAGIC, MAX_DIMS, TENSOR_ROW_LEN, VERSION,
};

/// A strided view of memory to be packed.
#[derive(Clone, Debug)]
pub struct Source {
    pub framework: Framework,
    pub dtype: DType,
    /// Address of the first element.
    pub address: usize,
    pub shape: Vec<u64>,
    /// In bytes.
    pub strides: Vec<i64>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// Row number of a source that has too many dimensions or does not fit the address space.
    BadSource(usize),
    TooLarge,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSource(row) => write!(f, "tensor {row} has impossible sizes or strides"),
            Self::TooLarge => write!(f, "the payload does not fit 64 bits"),
        }
    }
}

impl std::error::Error for EncodeError {}

/// A contiguous range of source memory and its offset in the payload.
#[derive(Debug)]
struct Run {
    address: usize,
    len: usize,
    offset: u64,
    /// In a GPU's memory, which this code cannot read.
    foreign: bool,
}

/// Where each part of a payload goes. Made once, it can be written to any memory of `len` bytes.
#[derive(Debug)]
pub struct Plan {
    /// Header, tables and skeleton.
    head: Vec<u8>,
    runs: Vec<Run>,
    len: u64,
}

impl Plan {
    /// Lays out a payload. Sources that overlap in memory share one run, which is copied once, with any bytes that lie
    /// between theirs: [`crate::layouts`] finds such sources and gives them memory without gaps.
    pub fn new(skeleton: &[u8], sources: &[Source]) -> Result<Self, EncodeError> {
        let mut spans = Vec::with_capacity(sources.len());
        for (row, source) in sources.iter().enumerate() {
            let bad = EncodeError::BadSource(row);
            if source.shape.len() > MAX_DIMS || source.strides.len() != source.shape.len() {
                return Err(bad);
            }
            let Some((low, high)) = extent(source.dtype.itemsize, &source.shape, &source.strides)
            else {
                return Err(bad);
            };
            if low == high {
                continue;
            }
            let (Some(start), Some(end)) = (
                source.address.checked_add_signed(low as isize),
                source.address.checked_add_signed(high as isize),
            ) else {
                return Err(bad);
            };
            spans.push((start, end, row));
        }
        spans.sort_unstable();

        let mut runs: Vec<Run> = Vec::with_capacity(spans.len());
        let mut run_of_row = vec![None; sources.len()];
        for (start, end, row) in spans {
            match runs.last_mut() {
                Some(run) if start < run.address + run.len => {
                    run.len = run.len.max(end - run.address)
                }
                _ => runs.push(Run {
                    address: start,
                    len: end - start,
                    offset: 0,
                    foreign: false,
                }),
            }
            run_of_row[row] = Some(runs.len() - 1);
        }

        let rows: usize = sources
            .iter()
            .map(|s| TENSOR_ROW_LEN + 16 * s.shape.len())
            .sum();
        let head_len = HEADER_LEN + rows + runs.len() * BUFFER_ROW_LEN + skeleton.len();
        let mut len = head_len as u64;
        for run in &mut runs {
            run.offset = len
                .checked_next_multiple_of(ALIGN)
                .ok_or(EncodeError::TooLarge)?;
            len = run
                .offset
                .checked_add(run.len as u64)
                .ok_or(EncodeError::TooLarge)?;
        }

        let count = |n: usize| u32::try_from(n).map_err(|_| EncodeError::TooLarge);
        let mut head = Vec::with_capacity(head_len);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&0u16.to_le_bytes());
        head.extend_from_slice(&count(sources.len())?.to_le_bytes());
        head.extend_from_slice(&count(runs.len())?.to_le_bytes());
        head.extend_from_slice(&(skeleton.len() as u64).to_le_bytes());
        head.extend_from_slice(&len.to_le_bytes());
        for (source, run) in sources.iter().zip(&run_of_row) {
            // A view without elements belongs to no buffer; u32::MAX says so.
            let (buffer, offset) = match run {
                Some(index) => (
                    count(*index)?,
                    (source.address - runs[*index].address) as u64,
                ),
                None => (u32::MAX, 0),
            };
            head.push(source.framework as u8);
            head.push(source.dtype.code);
            head.extend_from_slice(&(source.shape.len() as u16).to_le_bytes());
            head.extend_from_slice(&buffer.to_le_bytes());
            head.extend_from_slice(&offset.to_le_bytes());
            for size in &source.shape {
                head.extend_from_slice(&size.to_le_bytes());
            }
            for stride in &source.strides {
                head.extend_from_slice(&stride.to_le_bytes());
            }
        }
        for run in &runs {
            head.extend_from_slice(&run.offset.to_le_bytes());
            head.extend_from_slice(&(run.len as u64).to_le_bytes());
        }
        head.extend_from_slice(skeleton);
        Ok(Self { head, runs, len })
    }

    /// Size of the payload in bytes.
    #[allow(clippy::len_without_is_empty)] // a payload has a header and is never empty
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether any byte of a source is at one of those addresses.
    pub fn reads(&self, addresses: std::ops::Range<usize>) -> bool {
        let overlaps =
            |run: &Run| run.address < addresses.end && addresses.start < run.address + run.len;
        self.runs.iter().any(overlaps)
    }

    /// Marks the memory around `address`, which is part of a source, as foreign, for example a GPU's: the caller copies
    /// it.
    pub fn set_foreign(&mut self, address: usize) {
        let holds = |run: &&mut Run| (run.address..run.address + run.len).contains(&address);
        if let Some(run) = self.runs.iter_mut().find(holds) {
            run.foreign = true;
        }
    }

    /// The foreign memory, which [`Plan::write_to`] leaves out: address, length and offset in the payload.
    pub fn foreign(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        let foreign = self.runs.iter().filter(|run| run.foreign);
        foreign.map(|run| (run.address, run.len, run.offset))
    }

    /// Copies header, skeleton and tensors to `target`. Padding and the places of foreign memory are not written.
    ///
    /// # Safety
    /// `target` is valid for writing `len()` bytes. The memory of every source that is not foreign is still allocated,
    /// readable and not part of the target. Another thread may write to a source meanwhile; then
    /// the payload holds a mix of old and new bytes.
    pub unsafe fn write_to(&self, target: *mut u8) {
        // SAFETY: the caller guarantees `len()` writable bytes, of which these are the first.
        unsafe { std::ptr::copy_nonoverlapping(self.head.as_ptr(), target, self.head.len()) };
        for run in self.runs.iter().filter(|run| !run.foreign) {
            // SAFETY: `new` placed every run inside `len()`; the caller vouches for both memories.
            unsafe {
                copy(
                    run.address as *const u8,
                    target.add(run.offset as usize),
                    run.len,
                )
            };
        }
    }
}
