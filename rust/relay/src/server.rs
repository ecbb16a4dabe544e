//! Hands an arena's memory to peers and notices when they die. One thread an arena.
//!
//! A connection asks for segments by number (u64, 0 is the arena itself) and gets for each a status
//! byte, its peer number (u32), and the file descriptor; the first answer also carries the eventfd
//! that readers signal returns on.

use std::collections::HashMap;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{PidfdFlags, getuid, pidfd_open};

/// Files peers may ask for, by number.
pub type Segments = Arc<Mutex<HashMap<u64, Arc<OwnedFd>>>>;

pub struct Server {
    stop: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Peer {
    number: u32,
    stream: UnixStream,
    alive: OwnedFd,
    pid: i32,
}

impl Server {
    /// Serves `segments` under an abstract address until dropped. `lost(number)` runs when the
    /// process of a peer is gone; `joined(number, pid)` when one connects.
    pub fn start(
        name: &str,
        segments: Segments,
        event: Arc<OwnedFd>,
        joined: impl Fn(u32, i32) + Send + 'static,
        lost: impl Fn(u32) + Send + 'static,
    ) -> std::io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("relay-server".into())
            .spawn(move || {
                let mut peers: Vec<Peer> = Vec::new();
                let mut next = 1u32;
                while let Some(ready) = wait(&stopped, &listener, &peers) {
                    for index in ready.into_iter().rev() {
                        match index {
                            // In reverse order, so that the indices before it stay valid.
                            Some((index, Event::Died)) => {
                                let peer = peers.swap_remove(index);
                                lost(peer.number);
                            }
                            Some((index, Event::Asked)) => {
                                if serve(&mut peers[index], &segments, &event).is_err() {
                                    let peer = peers.swap_remove(index);
                                    lost(peer.number);
                                }
                            }
                            None => {
                                if let Some(peer) = accept(&listener, next) {
                                    joined(peer.number, peer.pid);
                                    peers.push(peer);
                                    next += 1;
                                }
                            }
                        }
                    }
                }
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Event {
    Died,
    Asked,
}

/// Blocks until something happens; `None` when the server is to stop. A new connection is `Some(None)`.
fn wait(
    stop: &OwnedFd,
    listener: &UnixListener,
    peers: &[Peer],
) -> Option<Vec<Option<(usize, Event)>>> {
    let mut fds = vec![
        PollFd::new(stop, PollFlags::IN),
        PollFd::new(listener, PollFlags::IN),
    ];
    for peer in peers {
        fds.push(PollFd::new(&peer.alive, PollFlags::IN));
        fds.push(PollFd::new(&peer.stream, PollFlags::IN));
    }
    loop {
        match poll(&mut fds, None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    if !fds[0].revents().is_empty() {
        return None;
    }
    let mut events = Vec::new();
    if !fds[1].revents().is_empty() {
        events.push(None);
    }
    for index in 0..peers.len() {
        if !fds[2 + 2 * index].revents().is_empty() {
            events.push(Some((index, Event::Died)));
        } else if !fds[3 + 2 * index].revents().is_empty() {
            events.push(Some((index, Event::Asked)));
        }
    }
    Some(events)
}

/// A connection of a process of this user. Others are dropped without a word.
fn accept(listener: &UnixListener, number: u32) -> Option<Peer> {
    let (stream, _) = listener.accept().ok()?;
    let credentials = socket_peercred(&stream).ok()?;
    if credentials.uid != getuid() {
        return None;
    }
    let alive = pidfd_open(credentials.pid, PidfdFlags::empty()).ok()?;
    stream.set_nonblocking(false).ok()?;
    // A peer that stops in the middle of a request must not hold up the others.
    stream
        .set_read_timeout(Some(std::time::Duration::from_secs(1)))
        .ok()?;
    Some(Peer {
        number,
        stream,
        alive,
        pid: credentials.pid.as_raw_nonzero().get(),
    })
}

/// Answers one request. An error is a connection at its end: the peer dropped the arena.
fn serve(peer: &mut Peer, segments: &Segments, event: &OwnedFd) -> std::io::Result<()> {
    let mut request = [0; 8];
    peer.stream.read_exact(&mut request)?;
    let segment = u64::from_le_bytes(request);
    let file = segments
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&segment)
        .cloned();
    let mut answer = [0; 5];
    answer[0] = u8::from(file.is_some());
    answer[1..].copy_from_slice(&peer.number.to_le_bytes());
    let fds: Vec<BorrowedFd<'_>> = match &file {
        Some(file) if segment == 0 => vec![file.as_fd(), event.as_fd()],
        Some(file) => vec![file.as_fd()],
        None => Vec::new(),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(
        &peer.stream,
        &[IoSlice::new(&answer)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}
