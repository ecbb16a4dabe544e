//! Ports to listen on, and descriptors for the clients that connect.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::base::stream::KEEPALIVE;

/// What the system takes for a time-out at most: milliseconds in 32 bits.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Connections that the system takes ahead of the router, for each lane.
pub const BACKLOG: usize = 4096;

/// Raises the limit on open descriptors to what the system allows: each request in flight takes two.
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

/// What a client's system may leave unacknowledged for longer than a client may take nothing.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// One listener a lane on the same port; the kernel spreads connections over them. Accepted connections take
/// over what is set here: a client's host that vanished without a word is noticed, as a worker's is. `stall` is
/// how long a client may take nothing of what it is sent.
pub fn bind(host: &str, port: u16, lanes: usize, stall: Duration) -> io::Result<Vec<TcpListener>> {
    let addr = (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
    // A shared port would be shared with another router too, silently. This one is not shared and fails.
    let exclusive = socket(addr)?;
    exclusive.bind(&addr.into())?;
    exclusive.listen(1)?;
    let addr = exclusive
        .local_addr()?
        .as_socket()
        .expect("bound to an IP address");
    drop(exclusive);
    (0..lanes)
        .map(|_| {
            let socket = socket(addr)?;
            socket.set_reuse_port(true)?;
            socket.set_tcp_keepalive(&KEEPALIVE)?;
            socket.set_tcp_user_timeout(Some(stall.saturating_add(UNACKNOWLEDGED).min(LONGEST)))?;
            socket.bind(&addr.into())?;
            socket.listen(BACKLOG as i32)?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        })
        .collect()
}

fn socket(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}
