//! The workers that have a block.

/// Workers by slot. Most blocks are had by one worker, which takes no memory of its own.
#[derive(Debug)]
pub enum Owners {
    One(u32),
    /// At least two, sorted. Boxed, so that `Owners` takes 16 bytes.
    #[expect(clippy::box_collection, reason = "a vector alone takes 24 bytes")]
    Several(Box<Vec<u32>>),
}

impl Owners {
    pub fn slots(&self) -> &[u32] {
        match self {
            Owners::One(slot) => std::slice::from_ref(slot),
            Owners::Several(slots) => slots,
        }
    }

    pub fn add(&mut self, slot: u32) {
        match self {
            Owners::One(only) if *only == slot => {}
            Owners::One(only) => {
                let both = vec![slot.min(*only), slot.max(*only)];
                *self = Owners::Several(Box::new(both));
            }
            Owners::Several(slots) => {
                if let Err(place) = slots.binary_search(&slot) {
                    slots.insert(place, slot);
                }
            }
        }
    }

    /// Returns true if none is left.
    pub fn remove(&mut self, slot: u32) -> bool {
        match self {
            Owners::One(only) => *only == slot,
            Owners::Several(slots) => {
                if let Ok(place) = slots.binary_search(&slot) {
                    slots.remove(place);
                }
                if let [only] = slots[..] {
                    *self = Owners::One(only);
                }
                false
            }
        }
    }
}
