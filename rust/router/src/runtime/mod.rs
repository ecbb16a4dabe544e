//! What the threads run on: the [`lane`], its [`clock`] and its [`memory`];
//! what its connections are, a [`stream`] each; and tasks that do not end, whatever happens, under [`supervise`].

pub mod clock;
pub mod lane;
pub mod memory;
pub mod stream;
pub mod supervise;
