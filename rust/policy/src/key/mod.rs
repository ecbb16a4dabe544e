//! What of a request matters for where it goes, read out of its JSON body.
//!
//! [`scan`] makes the key, with [`json`] as its cursor and [`media`] for what is not text.

pub mod json;
pub mod media;
pub mod scan;
