//! The clients' side: from a port to a request that was let in.
//!
//! - A lane has a port that [`listen`] opened. A [`connection`] is accepted there, perhaps under [`tls`].
//! - [`clients`] are the open connections, with their time limits; [`client_io`] is what moves on one.
//! - Each request passes the [`gate`], which asks [`auth`], [`access`], [`cors`] and [`cross_site`], and goes on
//!   from `connection::route`.

pub mod access;
pub mod auth;
pub mod client_io;
pub mod clients;
pub mod connection;
pub mod cors;
pub mod cross_site;
pub mod gate;
pub mod listen;
pub mod tls;
