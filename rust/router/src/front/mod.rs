//! The clients' side: from a port to a request that was let in.
//!
//! [`listen`] opens the ports and [`server`] runs the threads that accept from them; a connection is a
//! [`client`] with its [`client_io`], perhaps under [`tls`]. Each request on it passes the [`gate`], which
//! asks [`request_id`], [`auth`], [`cors`] and [`in_flight`]. [`reply`] is what the router says itself.

pub mod auth;
pub mod client;
pub mod client_io;
pub mod cors;
pub mod gate;
pub mod in_flight;
pub mod listen;
pub mod reply;
pub mod request_id;
pub mod server;
pub mod tls;
