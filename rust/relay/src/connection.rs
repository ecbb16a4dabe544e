//! A reader's connection to a sender, over which it asks for memory. No call waits for longer than [`PATIENCE`].

use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with,
};
use sglang_omni_faults as faults;

use crate::credentials::PeerProcess;
use crate::forks::Own;
use crate::lock;
use crate::segments::ANSWER_LEN;
use crate::ticket::MAX_HOLDER;

/// A sender answers in a thread of its own; one that takes longer is stopped or hopelessly overloaded.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts to connect while a sender's queue of connections is full.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(10);

pub struct Connection {
    /// Open as long as any memory of the sender is used: its end tells the sender that nothing is held any more.
    pub stream: Own<UnixStream>,
    pub peer: PeerProcess,
    /// Held while a question is asked: one at a time.
    asking: Mutex<()>,
}

/// The number that the sender gave this reader, and the files that came with the answer.
pub type SegmentAnswer = (u32, Vec<OwnedFd>);

impl Connection {
    pub fn connect(name: &str) -> Result<Self> {
        faults::point("relay.connect")?;
        let deadline = Instant::now() + PATIENCE;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = Own::open(|| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            Ok::<_, Error>(UnixStream::from(socket))
        })?;
        loop {
            match connect(&*stream, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    std::thread::sleep(FULL_QUEUE_PAUSE);
                }
                Err(Errno::AGAIN) => return Err(silent()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self {
            peer: PeerProcess::of(&*stream)?,
            stream,
            asking: Mutex::new(()),
        })
    }

    /// Asks for a segment. Signals do not end the wait, and a segment that came too late can be asked for again.
    pub fn ask(&self, segment: u64) -> Result<SegmentAnswer> {
        let _one_at_a_time = lock(&self.asking);
        let deadline = Instant::now() + PATIENCE;
        let question = segment.to_le_bytes();
        loop {
            match send(&*self.stream, &question, SendFlags::NOSIGNAL) {
                Ok(sent) if sent == question.len() => break,
                // Messages this short are sent whole.
                Ok(_) => return Err(Error::other("it takes half a question")),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
        loop {
            match self.hear() {
                // A late answer to an earlier question is skipped.
                Ok((answered, _)) if answered != segment => {}
                Ok((_, answer)) => return answer,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next answer, and the segment it is for.
    fn hear(&self) -> rustix::io::Result<(u64, Result<SegmentAnswer>)> {
        let mut answer = [0; ANSWER_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &*self.stream,
            &mut [IoSliceMut::new(&mut answer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let files = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if got.bytes != answer.len() {
            return Err(Errno::CONNRESET);
        }
        let (head, segment) = answer.split_at(5);
        let segment = u64::from_le_bytes(segment.try_into().expect("the last 8 bytes"));
        let number = u32::from_le_bytes(head[1..].try_into().expect("4 bytes"));
        let answer = if head[0] != 1 {
            Err(Error::new(
                ErrorKind::NotFound,
                "it does not have that memory any more",
            ))
        } else if !(1..=MAX_HOLDER).contains(&number) {
            Err(Error::other(format!("it calls its reader number {number}")))
        } else {
            Ok((number, files))
        };
        Ok((segment, answer))
    }

    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = vec![PollFd::new(&*self.stream, flags)];
        fds.extend(
            self.peer
                .alive
                .as_ref()
                .map(|alive| PollFd::new(alive, PollFlags::IN)),
        );
        let timeout = Timespec::try_from(left).expect("a few seconds");
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(silent()),
            // Received data is read first: the last message may be the answer.
            Ok(_) if !fds[0].revents().is_empty() => Ok(()),
            Ok(_) => Err(Error::other("its process has ended")),
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn silent() -> Error {
    let text = format!("it does not answer within {PATIENCE:?}: it is stopped, or has no time");
    Error::new(ErrorKind::TimedOut, text)
}
