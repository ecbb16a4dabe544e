//! Finds clients that have left while their requests are under way. hyper looks for a connection's end only while it has
//! read all that the client sent: a line break behind a body, or the next request, hides it.

use std::os::fd::RawFd;

/// Calls `left` with the position of each socket whose other side has closed it, or reset it. One system call.
pub fn find(sockets: &[RawFd], mut left: impl FnMut(usize)) {
    if sockets.is_empty() {
        return;
    }
    let asked = |&fd: &RawFd| libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    let mut polled: Vec<libc::pollfd> = sockets.iter().map(asked).collect();
    // SAFETY: a live array and its length. With a timeout of 0 the call does not wait.
    let found = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
    if found <= 0 {
        return; // Nobody left, or the kernel is short of memory: the next look will do.
    }
    const GONE: libc::c_short = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    for (position, socket) in polled.iter().enumerate() {
        if socket.revents & GONE != 0 {
            left(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn those_who_left_are_found_behind_bytes_that_nobody_has_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let clients: Vec<_> = (0..4).map(|_| connect()).collect();
        let sockets: Vec<_> = clients
            .iter()
            .map(|_| listener.accept().unwrap().0)
            .collect();
        for mut client in &clients {
            client.write_all(b"\r\n").unwrap();
        }
        clients[1].shutdown(Shutdown::Both).unwrap();
        clients[3].shutdown(Shutdown::Write).unwrap();
        let raw: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let start = Instant::now();
        let mut left = Vec::new();
        while left != [1, 3] {
            assert!(start.elapsed() < Duration::from_secs(20), "{left:?}");
            left.clear();
            find(&raw, |position| left.push(position));
        }
        find(&[], |_| panic!("there is nobody"));
    }
}
