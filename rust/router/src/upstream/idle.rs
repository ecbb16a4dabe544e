//! Idle connections to one worker, which every lane may take, and for how long the worker keeps them.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;

use crate::base::clock::{self, Tick};
use crate::base::stream::Stream;

/// How long a worker of which nothing is known is trusted to keep a connection: common servers do for five seconds.
const AT_FIRST: Duration = Duration::from_secs(4);

/// A worker that is busy closes connections late, and requests that were sent in between are lost. So a connection is
/// reused up to this long before its worker closes it, and at least a fifth of its time.
const MARGIN: Duration = Duration::from_secs(1);

/// A connection between two requests.
pub struct IdleStream {
    pub stream: Stream,
    pub since: Tick,
    /// The thread whose runtime watches the socket.
    home: ThreadId,
}

impl IdleStream {
    pub fn new(stream: Stream, since: Tick) -> IdleStream {
        IdleStream {
            stream,
            since,
            home: thread::current().id(),
        }
    }

    /// The stream, watched by the calling thread's runtime.
    pub fn into_stream(self) -> io::Result<Stream> {
        match self.home == thread::current().id() {
            true => Ok(self.stream),
            false => self.stream.rehome(),
        }
    }

    /// True if the worker has closed it, as far as the runtime knows already. Data on an idle connection end it too.
    fn is_known_closed(&self) -> bool {
        let socket = self.stream.socket();
        is_closed(socket.try_io(Interest::READABLE, || peek(socket)))
    }
}

/// True if nothing has arrived on an idle connection, not even its end. This asks the kernel: the runtime may not know
/// yet that the worker has closed it.
pub fn is_quiet(socket: &impl AsFd) -> bool {
    !is_closed(peek(socket))
}

fn peek(socket: &impl AsFd) -> io::Result<usize> {
    SockRef::from(socket).peek(&mut [MaybeUninit::uninit()])
}

fn is_closed(peeked: io::Result<usize>) -> bool {
    !peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

pub struct IdleStreams {
    /// The one that has been idle for longest comes first.
    streams: Mutex<Vec<IdleStream>>,
    /// For how many ticks the worker is trusted to keep an idle connection.
    trusted_for: AtomicU32,
}

impl Default for IdleStreams {
    fn default() -> Self {
        IdleStreams {
            streams: Mutex::default(),
            trusted_for: AtomicU32::new(clock::ticks(AT_FIRST)),
        }
    }
}

impl IdleStreams {
    pub fn put(&self, idle: IdleStream) {
        let mut streams = self.streams();
        let place = streams.partition_point(|other| other.since <= idle.since);
        streams.insert(place, idle);
    }

    /// The connection that was used last, if the worker is trusted to have kept it and it is open.
    pub fn take(&self, now: Tick) -> Option<IdleStream> {
        loop {
            let idle = self
                .streams()
                .pop_if(|last| self.is_trusted(now.saturating_sub(last.since)))?;
            if is_quiet(idle.stream.socket()) {
                return Some(idle);
            }
            self.closed_after(now.saturating_sub(idle.since));
        }
    }

    /// True if one can be taken, and stays good for a while.
    pub fn has_fresh(&self, now: Tick) -> bool {
        let is_fresh =
            |last: &IdleStream| self.is_trusted(now.saturating_sub(last.since).saturating_mul(2));
        self.streams().last().is_some_and(is_fresh)
    }

    pub fn is_trusted(&self, idle: Tick) -> bool {
        idle <= self.trusted_for.load(Relaxed)
    }

    /// Closes the connections that have been idle for `longest`, and learns from the others. Of those that cannot be
    /// reused, only the oldest is left: it shows how long the worker keeps it.
    pub fn sweep(&self, now: Tick, longest: Tick) {
        let mut streams = self.streams();
        let mut is_oldest = true;
        streams.retain(|idle| {
            let age = now.saturating_sub(idle.since);
            if idle.is_known_closed() {
                self.closed_after(age);
                return false;
            }
            let is_first = std::mem::replace(&mut is_oldest, false);
            self.trusted_for.fetch_max(without_margin(age), Relaxed);
            age < longest && (is_first || self.is_trusted(age))
        });
    }

    pub fn close_all(&self) {
        self.streams().clear();
    }

    /// The worker says in an answer how many seconds it keeps an idle connection.
    pub fn announced(&self, keep_alive: &[u8]) {
        let text = std::str::from_utf8(keep_alive).unwrap_or_default();
        let timeout = text
            .split(',')
            .find_map(|part| part.trim().strip_prefix("timeout="));
        if let Some(seconds) = timeout.and_then(|seconds| seconds.parse::<u32>().ok()) {
            let kept = clock::ticks(Duration::from_secs(seconds.into()));
            self.trust(without_margin(kept));
        }
    }

    /// The worker has closed a connection that was idle for so long.
    pub fn closed_after(&self, idle: Tick) {
        self.trusted_for.fetch_min(without_margin(idle), Relaxed);
    }

    fn trust(&self, limit: Tick) {
        if self.trusted_for.load(Relaxed) != limit {
            self.trusted_for.store(limit, Relaxed);
        }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<IdleStream>> {
        self.streams.lock().expect("nothing under this lock panics")
    }
}

fn without_margin(kept: Tick) -> Tick {
    kept.saturating_sub(clock::ticks(MARGIN).max(kept / 5))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection that has been idle for so many ticks, and the worker's end of it.
    fn idle(ticks: Tick) -> (IdleStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let (worker, _) = listener.accept().unwrap();
        let stream = Stream::Plain(tokio::net::TcpStream::from_std(stream).unwrap());
        (IdleStream::new(stream, NOW - ticks), worker)
    }

    const NOW: Tick = 100_000;
    const SECOND: Tick = 4;

    #[tokio::test]
    async fn the_last_used_of_the_connections_that_a_worker_keeps_is_taken() {
        let streams = IdleStreams::default();
        let (older, _kept) = idle(2 * SECOND);
        let (newer, _also_kept) = idle(SECOND);
        let (too_old, _not_trusted) = idle(5 * SECOND);
        let since = newer.since;
        assert!(!streams.has_fresh(NOW));
        for each in [newer, too_old, older] {
            streams.put(each);
        }
        assert!(streams.has_fresh(NOW) && !streams.has_fresh(NOW + 2 * SECOND));
        assert_eq!(streams.take(NOW).unwrap().since, since);
        assert_eq!(streams.take(NOW).unwrap().since, since - SECOND);
        assert!(streams.take(NOW).is_none());
    }

    #[tokio::test]
    async fn a_connection_that_the_worker_closed_or_wrote_to_is_never_taken() {
        let streams = IdleStreams::default();
        let (closed, end) = idle(2);
        drop(end);
        streams.put(closed);
        let (written, mut end) = idle(3);
        end.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            .unwrap();
        streams.put(written);
        let (open, _end) = idle(SECOND);
        streams.put(open);
        // The worker closes after less than a second: one that old is not trusted either.
        assert!(streams.take(NOW).is_none());
        assert!(!streams.is_trusted(1) && streams.is_trusted(0));
    }

    #[tokio::test]
    async fn a_worker_is_trusted_for_as_long_as_it_has_kept_one() {
        let streams = IdleStreams::default();
        let longest = 60 * SECOND;
        let (prover, _kept) = idle(20 * SECOND);
        let (useless, _also_kept) = idle(18 * SECOND);
        streams.put(prover);
        streams.put(useless);
        assert!(streams.is_trusted(4 * SECOND) && !streams.is_trusted(4 * SECOND + 1));
        streams.sweep(NOW, longest);
        assert!(streams.is_trusted(16 * SECOND) && !streams.is_trusted(16 * SECOND + 1));
        // The oldest stays: it will show if the worker keeps connections for longer. The other cannot be reused.
        assert_eq!(streams.streams().len(), 1);
        streams.sweep(NOW, 20 * SECOND);
        assert!(streams.streams().is_empty());
        // The worker is another one now.
        streams.closed_after(5 * SECOND);
        assert!(streams.is_trusted(4 * SECOND) && !streams.is_trusted(4 * SECOND + 1));
    }

    #[test]
    fn what_a_worker_announces_counts() {
        let streams = IdleStreams::default();
        for (announced, trusted) in [
            ("timeout=5, max=100", 4 * SECOND),
            ("max=7, timeout=75", 60 * SECOND),
            ("timeout=1", 0),
            ("timeout=soon", 0),
            ("max=7", 0),
            ("timeout=3", 2 * SECOND),
        ] {
            streams.announced(announced.as_bytes());
            assert!(streams.is_trusted(trusted), "{announced}");
            assert!(!streams.is_trusted(trusted + 1), "{announced}");
        }
    }
}
