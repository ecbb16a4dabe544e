//! What a connection to a worker needs, and the connections that wait for a request.

use std::sync::atomic::AtomicU64;

use tokio_rustls::rustls::pki_types::ServerName;

use crate::upstream::address::Address;
use crate::upstream::idle::IdleStreams;
use crate::upstream::worker_url::WorkerUrl;

pub struct Endpoint {
    /// The worker's id.
    pub id: u32,
    pub address: Address,
    /// The name that the worker's certificate must be for; None without TLS.
    pub certified_as: Option<ServerName<'static>>,
    pub idle: IdleStreams,
    /// Connections opened so far, those of health checks aside.
    pub opened: AtomicU64,
}

impl Endpoint {
    pub fn new(id: u32, url: &WorkerUrl) -> Endpoint {
        Endpoint {
            id,
            address: Address::new(&url.host, url.port),
            certified_as: url.certified_as.clone(),
            idle: IdleStreams::default(),
            opened: AtomicU64::new(0),
        }
    }
}
