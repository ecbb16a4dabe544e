//! The open client connections of a lane. They are checked once a tick, so that none needs a timer of its own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::client::{Client, Lag, Phase};
use crate::base::clock::{self, LaneClock, Tick};
use crate::front::hangups;

/// How long a client may take, in ticks.
pub struct ClientLimits {
    head: Tick,
    idle: Tick,
    stall: Tick,
    /// None if a worker may be silent for ever.
    answer: Option<Tick>,
}

impl ClientLimits {
    /// Zero for `answer` means no limit.
    pub fn new(head: Duration, idle: Duration, stall: Duration, answer: Duration) -> Self {
        ClientLimits {
            head: clock::ticks(head),
            idle: clock::ticks(idle),
            stall: clock::ticks(stall),
            answer: Some(clock::ticks(answer)).filter(|&limit| limit > 0),
        }
    }

    fn of(&self, phase: Phase) -> Option<Tick> {
        match phase {
            Phase::Idle => Some(self.idle),
            Phase::Head => Some(self.head),
            Phase::Body => Some(self.stall),
            Phase::Answer => self.answer,
            Phase::Busy => None,
        }
    }
}

struct Entry {
    client: Arc<Client>,
    socket: RawFd,
    peer: SocketAddr,
}

/// The open client connections of a lane.
#[derive(Default)]
pub struct Clients {
    open: RefCell<HashMap<u64, Entry>>,
    entered: Cell<u64>,
    are_leaving: Cell<bool>,
    are_dismissed: Cell<bool>,
}

impl Clients {
    /// Notes a connection on a socket, which stays open at least until the guard is dropped.
    pub fn enter(self: &Rc<Self>, socket: RawFd, peer: SocketAddr) -> ClientGuard {
        let number = self.entered.get();
        self.entered.set(number + 1);
        let client = Client::new();
        let entry = Entry {
            client: client.clone(),
            socket,
            peer,
        };
        self.open.borrow_mut().insert(number, entry);
        ClientGuard {
            clients: self.clone(),
            number,
            client,
        }
    }

    /// Wakes the connections that are late by now, and those whose clients do not wait for their answers any more.
    /// Cuts those whose clients take their answers too slowly, and returns how many.
    pub fn look_over(&self, look: LaneClock, limits: &ClientLimits) -> u64 {
        let open = self.open.borrow();
        let (mut waiting, mut sockets) = (Vec::new(), Vec::new());
        let mut cut = 0;
        for Entry {
            client,
            socket,
            peer,
        } in open.values()
        {
            let (phase, is_behind) = (client.phase(), client.is_behind());
            // The time without a request begins once the client has taken the last answer.
            let is_between = matches!(phase, Phase::Idle | Phase::Head);
            client.look_over(look, limits.of(phase).filter(|_| !is_behind || !is_between));
            // One that has left may not have been dropped yet.
            if !client.has_left()
                && let Some(lag) = client.lag(look, limits.stall)
            {
                cut += 1;
                let Lag {
                    unread,
                    taken,
                    seconds,
                } = lag;
                tracing::warn!(
                    client = %peer, unread, taken, seconds,
                    "a client takes its answer too slowly, and is cut"
                );
                client.cut();
                client.mark_left();
            } else if is_behind || matches!(phase, Phase::Busy | Phase::Answer) {
                waiting.push(client);
                sockets.push(*socket);
            }
        }
        hangups::find(&sockets, |position| waiting[position].mark_left());
        cut
    }

    /// Has every connection end after the next answer on it.
    pub fn leave(&self) {
        self.are_leaving.set(true);
    }

    pub fn are_leaving(&self) -> bool {
        self.are_leaving.get()
    }

    /// Has every connection end after the answer that is on its way. Idle connections end now.
    pub fn dismiss(&self) {
        if self.are_dismissed.replace(true) {
            return;
        }
        for entry in self.open.borrow().values() {
            entry.client.wake();
        }
    }

    pub fn are_dismissed(&self) -> bool {
        self.are_dismissed.get()
    }
}

/// Keeps a connection in the lane's list for as long as it is open.
pub struct ClientGuard {
    clients: Rc<Clients>,
    number: u64,
    pub client: Arc<Client>,
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.clients.open.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn who_takes_less_than_the_least_rate_is_cut_once() {
        let limits = ClientLimits {
            head: 4,
            idle: 4,
            stall: 8,
            answer: None,
        };
        let clients = Rc::new(Clients::default());
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = socket.local_addr().unwrap();
        let entry = clients.enter(socket.as_raw_fd(), peer);
        let client = &entry.client;
        let start = client.since();
        client.mark_behind();
        let mut look = LaneClock::default();
        let mut cut_at = |now| {
            look = look.next(now);
            clients.look_over(look, &limits)
        };
        assert_eq!(cut_at(start), 0);
        assert!(!client.is_slow());
        assert_eq!((1..=8).map(|tick| cut_at(start + tick)).sum::<u64>(), 0);
        // Its time without a request has not begun.
        assert!(client.is_slow() && !client.is_late());
        client.mark_caught_up();
        assert_eq!((cut_at(start + 9), client.is_slow()), (0, false));
        client.mark_behind();
        assert_eq!((10..=40).map(|tick| cut_at(start + tick)).sum::<u64>(), 1);
        assert!(client.has_left());
    }

    #[test]
    fn only_ticks_that_the_lane_has_seen_count_as_lateness() {
        let limits = ClientLimits {
            head: 4,
            idle: 40,
            stall: 40,
            answer: None,
        };
        let clients = Rc::new(Clients::default());
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = socket.local_addr().unwrap();
        let entry = clients.enter(socket.as_raw_fd(), peer);
        let start = entry.client.since();
        let mut look = LaneClock::default();
        let mut is_late_at = |now| {
            look = look.next(now);
            clients.look_over(look, &limits);
            entry.client.is_late()
        };
        // The first look of a lane, whose clock may have stood still before.
        assert!(!is_late_at(start));
        // One tick of a hundred has been seen, then two, and again one of a hundred.
        assert!(!is_late_at(start + 100));
        assert!(!is_late_at(start + 101));
        assert!(!is_late_at(start + 201));
        assert!(!is_late_at(start + 202));
        assert!(is_late_at(start + 203));
    }
}
