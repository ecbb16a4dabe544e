//! The clients' side: accepts connections and admits their requests.
//!
//! - [`listen`] opens the port. A [`connection`] is accepted there, perhaps with [`tls`].
//! - [`clients`] are the open connections with their time limits. [`client_io`] reads and writes one. [`unsent`] holds the
//!   part of an answer that its client has not taken yet. [`hangups`] finds clients that have closed their side.
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
pub mod hangups;
pub mod listen;
pub mod tls;
pub mod unsent;
