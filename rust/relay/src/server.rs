//! Hands an arena's memory to peers and notices when they die, in one thread per arena.
//!
//! A connection asks for segments by number (u64, 0 is the arena itself) and gets for each a status
//! byte, its peer number (u32), the segment's number again, and the file descriptor; the answer for
//! the arena also carries the eventfd that readers signal returns on.
//!
//! The payloads that a peer holds come back only when its connection or its process ends: a peer that stops in the
//! middle of a request, or does not read its answer, still has its views.

use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sglang_omni_faults::{self as faults, SiteAction};

use crate::forks::Own;
use crate::process::Process;
use crate::segments::{ANSWER_LEN, ARENA, Segments};
use crate::ticket::MAX_HOLDER;
use crate::{credentials, lock, report};

pub struct Server {
    owner: Process,
    stop: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct PeerConnection {
    number: u32,
    stream: Own<UnixStream>,
    credentials: credentials::PeerProcess,
    /// The request that is being received, and how many of its bytes have come.
    request: [u8; 8],
    received: usize,
}

impl Server {
    /// Serves `segments` under the abstract address `name` until dropped. `joined(number, pid)` runs when a peer
    /// connects, `lost(number)` when its process or connection has ended.
    pub fn start(
        name: &str,
        segments: Segments,
        event: Arc<OwnedFd>,
        joined: impl Fn(u32, i32) + Send + 'static,
        lost: impl Fn(u32) + Send + 'static,
    ) -> std::io::Result<Self> {
        let listener = Own::open(|| {
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
            listener.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(listener)
        })?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("relay-server".into())
            .spawn(move || {
                let mut peers: Vec<PeerConnection> = Vec::new();
                let mut last = 0;
                let mut exhausted = false;
                while let Some(ready) = wait(&stopped, &listener, &peers, exhausted) {
                    exhausted = false;
                    for index in ready.into_iter().rev() {
                        match index {
                            // The order is reversed, so that the indices before this one stay valid.
                            Some((index, Event::Died)) => {
                                let peer = peers.swap_remove(index);
                                lost(peer.number);
                            }
                            Some((index, Event::Asked)) => {
                                if !serve(&mut peers[index], &segments, &event) {
                                    let peer = peers.swap_remove(index);
                                    lost(peer.number);
                                }
                            }
                            None => match accept(&listener, number_after(last, &peers)) {
                                Ok(Some(peer)) => {
                                    joined(peer.number, peer.credentials.pid);
                                    last = peer.number;
                                    peers.push(peer);
                                }
                                Ok(None) => {}
                                Err(_) => exhausted = true,
                            },
                        }
                    }
                }
            })?;
        Ok(Self {
            owner: Process::this(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.owner != Process::this() {
            // The thread is the parent's, which goes on serving.
            return std::mem::forget(thread);
        }
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// The next number that no peer has, from 1 to [`MAX_HOLDER`].
fn number_after(last: u32, peers: &[PeerConnection]) -> u32 {
    let mut number = last;
    loop {
        number = number % MAX_HOLDER + 1;
        if peers.iter().all(|peer| peer.number != number) {
            return number;
        }
    }
}

enum Event {
    Died,
    Asked,
}

/// Time until connections are accepted again after too many files were open.
const EXHAUSTED: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Time until the server tries again after an error that is not expected to last.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waits for events. `None` if the server must stop; a new connection is an event `None`. If the process was
/// `exhausted`, new connections are not looked at for a moment, because they would be ready at once.
fn wait(
    stop: &OwnedFd,
    listener: &Own<UnixListener>,
    peers: &[PeerConnection],
    exhausted: bool,
) -> Option<Vec<Option<(usize, Event)>>> {
    let connections = if exhausted {
        PollFlags::empty()
    } else {
        PollFlags::IN
    };
    let mut fds = vec![
        PollFd::new(stop, PollFlags::IN),
        PollFd::new(&**listener, connections),
    ];
    for peer in peers {
        fds.push(match &peer.credentials.alive {
            Some(alive) => PollFd::new(alive, PollFlags::IN),
            // The connection's end stands for the process's; poll reports it unasked.
            None => PollFd::new(&*peer.stream, PollFlags::empty()),
        });
        // A complete request waits until its answer can be sent.
        let wanted = if peer.received < peer.request.len() {
            PollFlags::IN
        } else {
            PollFlags::OUT
        };
        fds.push(PollFd::new(&*peer.stream, wanted));
    }
    let mut well = true;
    loop {
        match poll(&mut fds, exhausted.then_some(&EXHAUSTED)) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => {
                // The server goes on: if it ended, its readers would never get memory again.
                if std::mem::take(&mut well) {
                    report("cannot wait for readers", error);
                }
                std::thread::sleep(LOOK_AGAIN);
                if rustix::io::read(stop, &mut [0u8; 8]).is_ok() {
                    return None;
                }
            }
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

/// Accepts a connection of a process of this user. Other connections are dropped and give `None`. An error means that
/// the connection is still queued and cannot be accepted now.
fn accept(listener: &UnixListener, number: u32) -> std::io::Result<Option<PeerConnection>> {
    let accepted = Own::open(|| {
        let (stream, _) = listener.accept()?;
        // A peer that stops in the middle of a request must not hold up the others.
        stream.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(stream)
    });
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            let exhausted = Errno::from_io_error(&error).is_some_and(|errno| {
                matches!(
                    errno,
                    Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
                )
            });
            return if exhausted { Err(error) } else { Ok(None) };
        }
    };
    let credentials = credentials::PeerProcess::of(&*stream).ok();
    Ok(credentials.map(|credentials| PeerConnection {
        number,
        stream,
        credentials,
        request: [0; 8],
        received: 0,
    }))
}

/// Serves a peer's request as far as is possible without waiting. Returns false at the connection's end: the peer
/// dropped the arena.
fn serve(peer: &mut PeerConnection, segments: &Segments, event: &OwnedFd) -> bool {
    if peer.received < peer.request.len() {
        match (&*peer.stream).read(&mut peer.request[peer.received..]) {
            Ok(0) => return false,
            Ok(count) => peer.received += count,
            // The peer closed with an answer unread: an end like any other.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
            Err(_) => return true,
        }
        if peer.received < peer.request.len() {
            return true;
        }
    }
    let segment = u64::from_le_bytes(peer.request);
    let file = match faults::point("relay.serve") {
        Ok(Some(SiteAction::Drop)) => return false,
        Ok(_) => lock(segments).get(&segment).cloned(),
        Err(_) => None,
    };
    let fds: Vec<BorrowedFd<'_>> = match &file {
        Some(file) if segment == ARENA => vec![file.as_fd(), event.as_fd()],
        Some(file) => vec![file.as_fd()],
        None => Vec::new(),
    };
    match answer(peer, segment, &fds) {
        // After a broken pipe, the next read reports the connection's end.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => peer.received = 0,
        Err(Errno::AGAIN | Errno::INTR) => {}
        // The kernel refused to pass the files on, for example because too many are in flight: the peer gets a refusal.
        Err(_) => {
            if answer(peer, segment, &[]) != Err(Errno::AGAIN) {
                peer.received = 0;
            }
        }
    }
    true
}

/// Sends a segment's files, or a refusal if there are none.
fn answer(peer: &PeerConnection, segment: u64, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut answer = [0; ANSWER_LEN];
    answer[0] = u8::from(!fds.is_empty());
    answer[1..5].copy_from_slice(&peer.number.to_le_bytes());
    answer[5..].copy_from_slice(&segment.to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    // A message this small is sent whole or not at all.
    sendmsg(
        &*peer.stream,
        &[IoSlice::new(&answer)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map(drop)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A server without segments, which refuses every request, and the numbers of the peers that it loses.
    fn server(name: &str) -> (Server, Receiver<u32>) {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (sender, lost) = channel();
        let server = Server::start(
            name,
            Segments::default(),
            Arc::new(event),
            |_, _| {},
            move |number| sender.send(number).unwrap(),
        );
        (server.unwrap(), lost)
    }

    fn connect(name: &str) -> UnixStream {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The peer number and the segment of the next answer.
    fn answered(stream: &mut UnixStream) -> (u32, u64) {
        let mut answer = [0; ANSWER_LEN];
        stream.read_exact(&mut answer).unwrap();
        let (number, segment) = answer[1..].split_at(4);
        (
            u32::from_le_bytes(number.try_into().unwrap()),
            u64::from_le_bytes(segment.try_into().unwrap()),
        )
    }

    #[test]
    fn numbers_fit_a_ticket_and_are_unique() {
        let (one, other) = UnixStream::pair().unwrap();
        let peers: Vec<PeerConnection> = [one, other]
            .into_iter()
            .zip([1, 2])
            .map(|(stream, number)| {
                let stream = Own::open(|| Ok::<_, std::io::Error>(stream)).unwrap();
                PeerConnection {
                    number,
                    credentials: credentials::PeerProcess::of(&*stream).unwrap(),
                    stream,
                    request: [0; 8],
                    received: 0,
                }
            })
            .collect();
        assert_eq!(number_after(0, &[]), 1);
        assert_eq!(number_after(2, &peers), 3);
        assert_eq!(number_after(MAX_HOLDER - 1, &peers), MAX_HOLDER);
        assert_eq!(number_after(MAX_HOLDER, &peers), 3);
    }

    #[test]
    fn a_peer_halfway_through_a_request_is_not_lost_and_holds_up_no_other() {
        let name = format!("relay-test-half-{}", std::process::id());
        let (_server, lost) = server(&name);
        let (mut slow, mut other) = (connect(&name), connect(&name));
        slow.write_all(&7u64.to_le_bytes()[..3]).unwrap();
        for segment in 0..3u64 {
            other.write_all(&segment.to_le_bytes()).unwrap();
            assert_eq!(answered(&mut other), (2, segment));
        }
        assert!(lost.recv_timeout(Duration::from_millis(1500)).is_err());
        slow.write_all(&7u64.to_le_bytes()[3..]).unwrap();
        assert_eq!(answered(&mut slow), (1, 7));
        drop(slow);
        assert_eq!(lost.recv_timeout(PATIENCE), Ok(1));
    }

    #[test]
    fn a_peer_that_reads_no_answers_is_not_lost_and_gets_them_all_later() {
        let name = format!("relay-test-deaf-{}", std::process::id());
        let (_server, lost) = server(&name);
        let mut deaf = connect(&name);
        let asking = deaf.try_clone().unwrap();
        let count = 20_000u64;
        let asked = std::thread::spawn(move || {
            (0..count).for_each(|segment| (&asking).write_all(&segment.to_le_bytes()).unwrap());
        });
        // Served while the first peer's answers have filled its connection, or are about to.
        let mut other = connect(&name);
        other.write_all(&5u64.to_le_bytes()).unwrap();
        assert_eq!(answered(&mut other), (2, 5));
        for segment in 0..count {
            assert_eq!(answered(&mut deaf), (1, segment));
        }
        asked.join().unwrap();
        assert!(lost.try_recv().is_err());
        // It closes with an answer unread.
        deaf.write_all(&1u64.to_le_bytes()).unwrap();
        drop(deaf);
        assert_eq!(lost.recv_timeout(PATIENCE), Ok(1));
    }
}
