//! The clients' side: from a port to a request that was let in.
//!
//! [`server`] starts the threads, each with a port that [`listen`] opened. A [`connection`] is accepted
//! there, perhaps under [`tls`]; its [`client`] is what is known of it, and [`client_io`] what moves on it.
//! Each request passes the [`gate`], which asks [`request_id`], [`auth`], [`cors`], [`cross_site`] and [`in_flight`],
//! and goes on from `connection::route`. [`reply`] is what the router says itself.

pub mod auth;
pub mod client;
pub mod client_io;
pub mod connection;
pub mod cors;
pub mod cross_site;
pub mod gate;
pub mod in_flight;
pub mod listen;
pub mod reply;
pub mod request_id;
pub mod server;
pub mod tls;
