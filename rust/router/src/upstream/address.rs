//! A worker's host and port, and connecting to them. Names are looked up in the background, again and again, so that
//! no request waits for a name server and a worker that moves is found.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long an address may take before the next one is tried beside it.
const STAGGER: Duration = Duration::from_millis(250);

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

    /// Connects to the first address that accepts. If the name was not looked up yet, this waits for the look-up.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        let mut known = self.known.subscribe();
        let known = known.wait_for(|known| *known != Known::NotYet).await;
        let known = known.map_err(io::Error::other)?.clone();
        match known {
            Known::At(addresses) => connect_to_any(&addresses).await,
            Known::Not(error) => Err(io::Error::new(io::ErrorKind::NotFound, error)),
            Known::NotYet => unreachable!("it was waited for"),
        }
    }

    pub fn is_name(&self) -> bool {
        self.is_name
    }

    pub async fn look_up(&self) {
        let found = lookup_host((self.host.as_str(), self.port)).await;
        self.learn(found.map(Iterator::collect));
    }

    /// Takes the result of a look-up. If it failed, the last addresses are kept: a name server in trouble is more
    /// likely than a worker that is gone.
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
                *known = Known::Not(format!("its name was not found: {error}"));
            }
            is_lost
        });
    }
}

/// Tries the addresses one after the other, IPv6 and IPv4 in turns, without waiting long for any (RFC 8305): an
/// address that does not answer must not make a worker with another address unreachable.
async fn connect_to_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    if let [address] = addresses {
        return TcpStream::connect(address).await;
    }
    let mut left = in_turns(addresses).into_iter();
    let mut attempts = JoinSet::new();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    loop {
        if let Some(address) = left.next() {
            attempts.spawn(TcpStream::connect(address));
        }
        let next = async {
            match left.len() {
                0 => pending().await,
                _ => sleep(STAGGER).await,
            }
        };
        tokio::select! {
            done = attempts.join_next() => match done {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failed = error,
                Some(Err(error)) => failed = io::Error::other(error),
                None => return Err(failed),
            },
            () = next => {}
        }
    }
}

/// The addresses of the two families in turns, as far as they go.
fn in_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first_kind = |address: &&SocketAddr| address.is_ipv6() == addresses[0].is_ipv6();
    let (first, second): (Vec<_>, Vec<_>) = addresses.iter().partition(is_first_kind);
    let mut mixed = Vec::with_capacity(addresses.len());
    for position in 0..first.len().max(second.len()) {
        mixed.extend(first.get(position));
        mixed.extend(second.get(position));
    }
    mixed
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

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
        let why = "its name was not found: no answer".to_owned();
        assert_eq!(known, Known::Not(why));
        address.learn(found("10.0.0.1"));
        assert!(is_at("10.0.0.1"));
        address.learn(lost());
        address.learn(Ok(Vec::new()));
        assert!(is_at("10.0.0.1"));
        address.learn(found("10.0.0.2"));
        assert!(is_at("10.0.0.2"));
    }

    fn at(addresses: &[SocketAddr]) -> Address {
        let address = Address::new("replica", 7);
        address.learn(Ok(addresses.to_vec()));
        address
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn an_address_that_does_not_answer_costs_no_worker_that_has_another() {
        // A listener whose queue is full: the system drops what would connect to it.
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        silent.bind(&any.into()).unwrap();
        silent.listen(0).unwrap();
        let dead = silent.local_addr().unwrap().as_socket().unwrap();
        let filling: Vec<_> = (0..4)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&dead.into());
                socket
            })
            .collect();
        let good = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let good = good.local_addr().unwrap();
        let stream = run(async {
            let address = at(&[dead, dead, good]);
            tokio::time::timeout(Duration::from_secs(3), address.connect()).await
        });
        let stream = stream.expect("it waits for the dead address").unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        drop(filling);
    }

    #[test]
    fn an_address_that_refuses_is_not_waited_for() {
        let good = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let good = good.local_addr().unwrap();
        let closed: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let stream = run(at(&[closed, good]).connect()).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        let error = run(at(&[closed, closed]).connect()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn families_take_turns() {
        let parse = |list: &[&str]| -> Vec<SocketAddr> {
            list.iter().map(|text| text.parse().unwrap()).collect()
        };
        let given = parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]);
        let mixed = parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(in_turns(&given), mixed);
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
