//! The key of a request: the parts of its JSON body that decide where it goes.
//!
//! [`scan`] makes the key, with [`json`] as its cursor and [`media`] for images, audio and video.

pub mod json;
pub mod media;
pub mod scan;
