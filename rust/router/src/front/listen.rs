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

/// Opens one listener for each lane on the same port; the kernel spreads connections over them. Accepted connections
/// inherit these options, so that the router notices a client's host that vanished silently, as it does a worker's.
/// `stall` is how long a client may read nothing.
pub fn bind(host: &str, port: u16, lanes: usize, stall: Duration) -> io::Result<Vec<TcpListener>> {
    let addr = (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
    // Another router could silently share the port. So it is first bound exclusively, which then fails.
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
            limit_unacknowledged(&socket, stall.saturating_add(UNACKNOWLEDGED).min(LONGEST))?;
            limit_not_sent(&socket, KERNEL_HOLDS)?;
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
