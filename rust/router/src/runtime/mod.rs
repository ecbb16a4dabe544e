//! What the threads run on: the [`lane`], how it waits ([`spin`]), its [`clock`] and its [`memory`]; and
//! what its connections are, a [`stream`] each.

pub mod clock;
pub mod lane;
pub mod memory;
pub mod spin;
pub mod stream;
