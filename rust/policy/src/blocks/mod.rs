//! Exact knowledge of workers' caches, from the events that they publish: which worker has which block.
//!
//! - [`chain`] names blocks by their content.
//! - [`event`] is what a worker reports.
//! - [`index`] finds the workers that have the blocks of a request.
//!
//! Workers name their blocks by hashes that only they can compute. So each block is hashed here once more, from its
//! tokens and from those before it; a worker's own hash serves to find the block again when it is removed. The scheme
//! is that of NVIDIA Dynamo's router.

pub mod chain;
pub mod event;
pub mod index;
pub mod matches;
mod owners;
#[cfg(test)]
mod tests;
