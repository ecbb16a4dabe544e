//! Opens ports to listen on, and raises the limit of open descriptors.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::base::stream::{KEEPALIVE, limit_not_sent, limit_unacknowledged};

/// A bound for time-outs: the kernel takes them as milliseconds in 32 bits.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Connections that the kernel accepts ahead of the router, for each lane.
pub const BACKLOG: usize = 4096;

/// Raises the limit of open descriptors to what the system allows: each request in flight takes two.
pub fn allow_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a valid pointer to a `rlimit` that lives through the call.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// How much longer than `stall` a client's host may leave data unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// What a client does not take waits in the router, where it is counted. The kernel would take megabytes at once, and
/// then nothing for minutes.
const KERNEL_HOLDS: u32 = 256 << 10;

/// Opens one listener for each lane on each of the host's addresses, all with the same port; the kernel spreads
/// connections over the lanes. `stall` is how long a client may read nothing.
pub fn bind(
    host: &str,
    port: u16,
    lanes: usize,
    stall: Duration,
) -> io::Result<Vec<Vec<TcpListener>>> {
    let addrs = claim_all((host, port).to_socket_addrs()?)?;
    let of_lane = |_| addrs.iter().map(|&addr| open(addr, stall)).collect();
    (0..lanes).map(of_lane).collect()
}

/// The addresses that can be listened on, with their port.
fn claim_all(addrs: impl Iterator<Item = SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let mut claimed: Vec<SocketAddr> = Vec::new();
    let mut missing = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for mut addr in addrs {
        if let Some(first) = claimed.first() {
            addr.set_port(first.port());
        }
        if claimed.contains(&addr) {
            continue;
        }
        match claim(addr) {
            Ok(addr) => claimed.push(addr),
            // A name such as localhost has an IPv6 address also where the machine has none.
            Err(error) if is_missing(&error) => missing = error,
            Err(error) => return Err(error),
        }
    }
    match claimed.is_empty() {
        true => Err(missing),
        false => Ok(claimed),
    }
}

fn is_missing(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT))
}

/// The address, with the port that the system chose if it was 0. It is bound exclusively for a moment, which fails if
/// another program listens there: lanes share their port, and a second router would silently share it too.
fn claim(addr: SocketAddr) -> io::Result<SocketAddr> {
    let exclusive = socket(addr)?;
    exclusive.bind(&addr.into())?;
    exclusive.listen(1)?;
    let bound = exclusive.local_addr()?.as_socket();
    Ok(bound.expect("bound to an IP address"))
}

/// Accepted connections inherit these options, so that the router notices a client's host that vanished silently, as it
/// does a worker's.
fn open(addr: SocketAddr, stall: Duration) -> io::Result<TcpListener> {
    let socket = socket(addr)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    limit_unacknowledged(&socket, stall.saturating_add(UNACKNOWLEDGED).min(LONGEST))?;
    limit_not_sent(&socket, KERNEL_HOLDS)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG as i32)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn socket(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(addrs: &[&str]) -> io::Result<Vec<SocketAddr>> {
        claim_all(addrs.iter().map(|addr| addr.parse().unwrap()))
    }

    #[test]
    fn a_name_is_listened_on_at_all_of_its_addresses_that_are_there() {
        // One is named twice, and one belongs to no machine.
        let names = ["127.0.0.1:0", "127.0.0.2:0", "127.0.0.1:0", "192.0.2.1:0"];
        let addrs = claimed(&names).unwrap();
        let ips: Vec<String> = addrs.iter().map(|addr| addr.ip().to_string()).collect();
        assert_eq!(ips, ["127.0.0.1", "127.0.0.2"]);
        assert_eq!(addrs[0].port(), addrs[1].port());
        // None of them may be another program's.
        let _other = TcpListener::bind(addrs[1]).unwrap();
        let again: Vec<String> = addrs.iter().map(SocketAddr::to_string).collect();
        let error = claimed(&[&again[0], &again[1]]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let error = claimed(&["192.0.2.1:0"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
