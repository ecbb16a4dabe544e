//! A request's body on its way from the client to a worker.

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

/// A request's body as far as it was read before forwarding, and the rest.
pub struct Upload {
    pub read: Bytes,
    /// Counts what was read as held.
    _held: HeldBytes,
    /// What came behind it.
    trailers: Option<HeaderMap>,
    /// What still has to come from the client; a request with a rest can be sent only once.
    pub rest: Option<Rest>,
    is_whole: bool,
}

/// Bytes of a body that its lane holds, for as long as it does.
struct HeldBytes {
    lane: Rc<Lane>,
    bytes: usize,
}

impl HeldBytes {
    /// Adds bytes; false if that is more than a lane may hold.
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

/// Bytes that a client has to send of a body while the time runs that it has for sending some: 1 KiB a second.
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

    /// Tells what was wrong with the rest, once that has turned out.
    pub fn fault(&self) -> Rc<Cell<Option<Fault>>> {
        self.rest.as_ref().map_or_else(Rc::default, Rest::fault)
    }

    /// Whether the whole body is at hand, to be sent again if need be.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The body for one attempt. It takes the rest with it.
    pub fn take(&mut self) -> RequestBody {
        RequestBody::new(self.read.clone(), self.trailers.clone(), self.rest.take())
    }
}
