//! The claims of texts that are on their way to workers.

/// Refers to a claim. An id of a claim that has ended refers to no later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId {
    index: u32,
    serial: u32,
}

struct Entry {
    serial: u32,
    /// Where its text ends.
    node: u32,
    worker: u32,
    /// Bytes of memory that were added for it alone.
    added: usize,
}

pub struct Claims {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    serial: u32,
}

impl Default for Claims {
    fn default() -> Self {
        Claims {
            entries: Vec::new(),
            free: Vec::new(),
            // Ids of claims on a discarded tree must not refer to claims on its successor.
            serial: fastrand::u32(..),
        }
    }
}

impl Claims {
    pub fn add(&mut self, node: u32, worker: u32, added: usize) -> ClaimId {
        self.serial = self.serial.wrapping_add(1);
        let claim = Some(Entry {
            serial: self.serial,
            node,
            worker,
            added,
        });
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = claim;
                index
            }
            None => {
                self.entries.push(claim);
                (self.entries.len() - 1) as u32
            }
        };
        ClaimId {
            index,
            serial: self.serial,
        }
    }

    /// Ends a claim: the node where its text ends, and its worker.
    pub fn take(&mut self, id: ClaimId) -> Option<(u32, u32)> {
        let entry = self.entries.get_mut(id.index as usize)?;
        let claim = entry.take_if(|claim| claim.serial == id.serial)?;
        self.free.push(id.index);
        Some((claim.node, claim.worker))
    }

    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = (u32, u32)> {
        let claims = self.entries.iter().flatten();
        claims.map(|claim| (claim.node, claim.worker))
    }

    /// The worker's claim that added most memory.
    pub fn largest(&self, worker: u32) -> Option<ClaimId> {
        let claims = self.entries.iter().zip(0..);
        let (claim, index) = claims
            .filter_map(|(claim, index)| Some((claim.as_ref()?, index)))
            .filter(|(claim, _)| claim.worker == worker)
            .max_by_key(|(claim, _)| claim.added)?;
        Some(ClaimId {
            index,
            serial: claim.serial,
        })
    }
}
