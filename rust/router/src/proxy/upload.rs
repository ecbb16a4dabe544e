//! Reads a request's body, or its beginning, before the request is forwarded.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Incoming};

use crate::base::client::Client;
use crate::proxy::lane::Lane;
use crate::proxy::pieces::Pieces;
use crate::upstream::request_body::{BodyError, Fault, RequestBody, Rest, poll_client};

/// A request's body: what was read before forwarding, and the rest.
pub struct Upload {
    pub read: Bytes,
    /// Counts `read` as held.
    _held: HeldBytes,
    trailers: Option<HeaderMap>,
    /// What the client still has to send. A request with a rest can be sent only once.
    pub rest: Option<Rest>,
    is_whole: bool,
}

/// Counts bytes of a body as held by its lane for as long as it lives.
struct HeldBytes {
    lane: Rc<Lane>,
    bytes: usize,
}

impl HeldBytes {
    /// Adds bytes; false if the lane then holds more than it may.
    fn grow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let held = self.lane.held.get() + bytes;
        self.lane.held.set(held);
        held <= self.lane.held_limit
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.lane.held.set(self.lane.held.get() - self.bytes);
    }
}

/// Bytes of a body that a client must send within `stall_timeout`: 1 KiB for each second.
fn floor(stall_timeout: Duration) -> u32 {
    (stall_timeout.as_secs_f64() * 1024.0).clamp(1.0, 1e9) as u32
}

impl Upload {
    /// Reads up to `window` bytes of a body.
    pub async fn read(
        lane: &Rc<Lane>,
        mut incoming: Incoming,
        client: Arc<Client>,
        window: usize,
    ) -> Result<Upload, BodyError> {
        let settings = &lane.proxy.settings;
        let (limit, floor) = (settings.max_body_bytes, floor(settings.stall_timeout));
        let mut held = HeldBytes {
            lane: lane.clone(),
            bytes: 0,
        };
        let mut read = Pieces::default();
        let mut trailers = None;
        let expected = incoming
            .size_hint()
            .upper()
            .map_or(window, |upper| upper.min(window as u64) as usize);
        let mut is_whole = incoming.is_end_stream();
        while !is_whole && read.len() < window {
            match std::future::poll_fn(|cx| poll_client(&mut incoming, &client, floor, cx)).await {
                None => is_whole = true,
                Some(Err(error)) => return Err(error),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        if !held.grow(data.len()) {
                            return Err(BodyError::Full(incoming));
                        }
                        read.push(data, expected);
                    }
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
            }
            if read.len() as u64 > limit {
                return Err(BodyError::TooLarge(incoming));
            }
            is_whole |= incoming.is_end_stream();
        }
        let budget = limit - read.len() as u64;
        Ok(Upload {
            read: read.join(),
            _held: held,
            trailers,
            rest: (!is_whole).then(|| Rest::new(incoming, client, floor, budget)),
            is_whole,
        })
    }

    /// The cell that gets the client's fault with the rest, if there turns out to be one.
    pub fn fault(&self) -> Rc<Cell<Option<Fault>>> {
        self.rest.as_ref().map_or_else(Rc::default, Rest::fault)
    }

    /// Whether the whole body is at hand, so that it can be sent again.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The body for one attempt; it takes the rest.
    pub fn take(&mut self) -> RequestBody {
        RequestBody::new(self.read.clone(), self.trailers.clone(), self.rest.take())
    }
}
