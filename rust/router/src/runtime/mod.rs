//! What the threads run on: the [`lane`], how it waits ([`spin`]), its [`clock`] and its [`memory`].

pub mod clock;
pub mod lane;
pub mod memory;
pub mod spin;
