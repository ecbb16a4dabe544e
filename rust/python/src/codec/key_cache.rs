//! A cache of the str objects that messages use as keys again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyString;

/// A power of two, more than the different keys of a pipeline's messages and payloads.
const SLOTS: usize = 1024;
/// Longer keys are rare, and are data rather than names.
const LONGEST: usize = 40;

/// Strings by their UTF-8, each in the one slot that its hash gives.
pub struct KeyCache(Box<[Option<Slot>]>);

struct Slot {
    utf8: [u8; LONGEST],
    len: u8,
    text: Py<PyString>,
}

impl KeyCache {
    fn new() -> Self {
        Self(std::iter::repeat_with(|| None).take(SLOTS).collect())
    }

    /// The str of `utf8`, which `make` makes if it is not in the cache.
    #[inline]
    pub fn get<'py, E>(
        &mut self,
        py: Python<'py>,
        utf8: &[u8],
        make: impl FnOnce() -> Result<Bound<'py, PyString>, E>,
    ) -> Result<Bound<'py, PyString>, E> {
        if utf8.len() > LONGEST {
            return make();
        }
        let slot = &mut self.0[hash(utf8) % SLOTS];
        if let Some(known) = slot
            && known.utf8[..usize::from(known.len)] == *utf8
        {
            return Ok(known.text.bind(py).clone());
        }
        let text = make()?;
        let mut copy = [0; LONGEST];
        copy[..utf8.len()].copy_from_slice(utf8);
        *slot = Some(Slot {
            utf8: copy,
            len: utf8.len() as u8,
            text: text.clone().unbind(),
        });
        Ok(text)
    }
}

fn hash(utf8: &[u8]) -> usize {
    let mix = |sum: u64, word: u64| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    };
    let (words, rest) = utf8.as_chunks::<8>();
    let mut sum = utf8.len() as u64;
    for word in words {
        sum = mix(sum, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(sum, u64::from_le_bytes(last)) as usize
}

/// A cache that one decoder uses at a time.
pub struct SharedKeyCache(Mutex<Option<KeyCache>>);

impl SharedKeyCache {
    pub fn new() -> Self {
        Self(Mutex::new(Some(KeyCache::new())))
    }

    /// Takes the cache. `None` while another decoder has it, in another thread or further up the stack.
    pub fn take(&self) -> Option<KeyCache> {
        self.lock().take()
    }

    pub fn give_back(&self, keys: Option<KeyCache>) {
        if keys.is_some() {
            *self.lock() = keys;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<KeyCache>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
