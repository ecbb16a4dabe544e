//! Where a worker is. Names are looked up beside the requests, again and again, so that none waits for a
//! name server and a worker that moves is found.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::fleet::standing::Behind;
use crate::fleet::worker::Worker;
use crate::runtime::lane::Shared;

/// How old what is known of a name may be; while its worker is down it is looked up before each probe.
const REFRESH: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    NotYet,
    Not(String),
    At(Vec<SocketAddr>),
}

/// A host and a port.
#[derive(Debug)]
pub struct Address {
    host: String,
    pub port: u16,
    is_name: bool,
    known: watch::Sender<Known>,
}

impl Address {
    pub fn new(host: &str, port: u16) -> Self {
        let ip = host.parse::<IpAddr>().ok();
        let known = ip.map_or(Known::NotYet, |ip| {
            Known::At(vec![SocketAddr::new(ip, port)])
        });
        Address {
            host: host.to_owned(),
            port,
            is_name: ip.is_none(),
            known: watch::Sender::new(known),
        }
    }

    /// Connects to the first address that takes a connection. A name that was not looked up yet is waited
    /// for.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        let mut known = self.known.subscribe();
        let known = known.wait_for(|known| *known != Known::NotYet).await;
        let known = known.map_err(io::Error::other)?.clone();
        match known {
            Known::At(addresses) => TcpStream::connect(&addresses[..]).await,
            Known::Not(error) => Err(io::Error::new(io::ErrorKind::NotFound, error)),
            Known::NotYet => unreachable!("it was waited for"),
        }
    }

    async fn look_up(&self) {
        let found = lookup_host((self.host.as_str(), self.port)).await;
        self.learn(found.map(Iterator::collect));
    }

    /// Takes what a lookup has found. When it fails, the last addresses are kept: more often the name
    /// server is in trouble than the worker gone.
    fn learn(&self, found: io::Result<Vec<SocketAddr>>) {
        let error = match found {
            Ok(addresses) if !addresses.is_empty() => {
                self.known.send_replace(Known::At(addresses));
                return;
            }
            Ok(_) => "it has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        self.known.send_if_modified(|known| {
            let is_lost = !matches!(known, Known::At(_));
            if is_lost {
                *known = Known::Not(format!("the name {} was not found: {error}", self.host));
            }
            is_lost
        });
    }
}

/// Keeps up with where a worker's name leads, until the worker leaves the fleet.
pub async fn follow(shared: Arc<Shared>, worker: Arc<Worker>) {
    if !worker.address.is_name {
        return;
    }
    while shared.fleet.has(&worker) {
        worker.address.look_up().await;
        let next = Instant::now() + REFRESH;
        while Instant::now() < next && shared.fleet.has(&worker) {
            sleep(shared.config.probe_interval.min(REFRESH)).await;
            if worker.standing.is(Behind::Down) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_lookups_and_outlive_failed_ones() {
        let address = Address::new("replica", 7);
        let is_at = |ip: &str| {
            let at = SocketAddr::new(ip.parse().unwrap(), 7);
            *address.known.borrow() == Known::At(vec![at])
        };
        let found = |ip: &str| Ok(vec![SocketAddr::new(ip.parse().unwrap(), 7)]);
        let lost = || Err(io::Error::other("no answer"));

        assert_eq!(*address.known.borrow(), Known::NotYet);
        address.learn(lost());
        let known = address.known.borrow().clone();
        let why = "the name replica was not found: no answer".to_owned();
        assert_eq!(known, Known::Not(why));
        address.learn(found("10.0.0.1"));
        assert!(is_at("10.0.0.1"));
        address.learn(lost());
        address.learn(Ok(Vec::new()));
        assert!(is_at("10.0.0.1"));
        address.learn(found("10.0.0.2"));
        assert!(is_at("10.0.0.2"));
    }

    #[test]
    fn an_ip_needs_no_lookup() {
        for ip in ["10.0.0.1", "::1"] {
            let address = Address::new(ip, 80);
            assert!(!address.is_name);
            assert!(matches!(&*address.known.borrow(), Known::At(at) if at[0].port() == 80));
        }
        assert!(Address::new("localhost", 80).is_name);
    }
}
