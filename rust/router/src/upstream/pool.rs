//! Idle connections to workers, kept for further requests. Each lane has its own pool of those that it uses all the
//! time; the others are its worker's [`IdleStreams`], which all lanes share.
//!
//! [`IdleStreams`]: crate::upstream::idle::IdleStreams

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::base::clock::{self, Tick};
use crate::base::fault_point::fault_point;
use crate::upstream::connection::{Begun, Upstream};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::trust::Trust;

/// A connection that waited for its last request for no more ticks than this is kept by its lane, for as long again.
const SHORT_WAIT: Tick = 1;

/// A lane's own idle connections by worker, the most recently used one last.
pub struct Pool {
    #[allow(clippy::vec_box)] // They come boxed and leave boxed.
    own: RefCell<HashMap<u32, Vec<Box<Upstream>>>>,
    pub trust: Arc<Trust>,
}

/// The rest of an answer that is read to keep its connection: bytes, and time.
const REST: usize = 64 << 10;
const REST_TIME: Duration = Duration::from_secs(1);

impl Pool {
    pub fn new(trust: Arc<Trust>) -> Rc<Pool> {
        Rc::new(Pool {
            own: RefCell::default(),
            trust,
        })
    }

    /// An idle connection to a worker, or a new one, which may take `limit` to open.
    pub async fn get(
        &self,
        endpoint: &Arc<Endpoint>,
        limit: Duration,
    ) -> io::Result<Box<Upstream>> {
        while let Some(mut upstream) = self.pop(endpoint.id) {
            if upstream.is_alive() {
                return Ok(upstream);
            }
        }
        while let Some(idle) = endpoint.idle.take(clock::now()) {
            if let Ok(upstream) = Upstream::resume(idle, endpoint).await {
                return Ok(upstream);
            }
        }
        self.open(endpoint, limit).await
    }

    /// A connection that nothing was sent on yet.
    pub async fn open(
        &self,
        endpoint: &Arc<Endpoint>,
        limit: Duration,
    ) -> io::Result<Box<Upstream>> {
        endpoint.opened.fetch_add(1, Relaxed);
        if let Some(fault) = fault_point("router.connect") {
            timeout(limit, fault).await??;
        }
        Upstream::open(endpoint, &self.trust, limit).await
    }

    fn pop(&self, worker: u32) -> Option<Box<Upstream>> {
        let mut upstream = self.own.borrow_mut().get_mut(&worker)?.pop()?;
        upstream.waited = clock::now().saturating_sub(upstream.idle_since);
        Some(upstream)
    }

    /// Keeps a connection whose answer was read to its end, or closes it if it cannot be used again.
    pub fn put_back(&self, mut upstream: Box<Upstream>) {
        if !upstream.is_ready() {
            return;
        }
        upstream.reused = true;
        upstream.idle_since = clock::now();
        if upstream.waited > SHORT_WAIT {
            upstream.share();
            return;
        }
        let mut own = self.own.borrow_mut();
        own.entry(upstream.endpoint.id).or_default().push(upstream);
    }

    /// Reads the rest of an answer that no client gets, if it is short and comes at once, and keeps its connection: a fleet
    /// that refuses much would pay a new one for each refusal.
    pub fn finish(self: &Rc<Self>, answer: Begun, mut upstream: Box<Upstream>) {
        let (pool, mut incoming) = (self.clone(), answer.incoming);
        spawn_local(timeout(REST_TIME, async move {
            let mut read = 0;
            while let Some(frame) = poll_fn(|cx| upstream.poll_frame(&mut incoming, cx)).await {
                match frame {
                    Ok(frame) if read <= REST => {
                        read += frame.data_ref().map_or(0, |data| data.len());
                    }
                    _ => return,
                }
            }
            pool.put_back(upstream);
        }));
    }

    /// Leaves connections that the lane has not used for a moment to all lanes, and closes those that workers closed.
    pub fn share_unused(&self) {
        let now = clock::now();
        self.own.borrow_mut().retain(|_, own| {
            // The longest idle one comes first.
            let used = own.partition_point(|upstream| now - upstream.idle_since > SHORT_WAIT);
            for mut upstream in own.drain(..used) {
                if upstream.is_ready() {
                    upstream.share();
                }
            }
            !own.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use hyper::Request;
    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::upstream::request_body::RequestBody;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Asks as a lane does, on a thread of its own.
    fn ask_in_a_lane(endpoint: &Arc<Endpoint>) {
        let endpoint = endpoint.clone();
        let lane = thread::spawn(move || {
            let mut builder = Builder::new_current_thread();
            let runtime = builder.enable_all().build_local(LocalOptions::default());
            let pool = Pool::new(Arc::new(Trust::read(None).unwrap()));
            runtime.unwrap().block_on(ask(&pool, &endpoint));
        });
        lane.join().unwrap();
    }

    async fn ask(pool: &Pool, endpoint: &Arc<Endpoint>) {
        let mut upstream = pool.get(endpoint, LIMIT).await.unwrap();
        let request = Request::get("/").body(RequestBody::empty()).unwrap();
        let answer = upstream.ask(request, false).await.ok().unwrap();
        let mut incoming = answer.into_body().incoming;
        while let Some(frame) = poll_fn(|cx| upstream.poll_frame(&mut incoming, cx)).await {
            frame.unwrap();
        }
        pool.put_back(upstream);
    }

    /// A worker that answers requests on one connection after the other.
    fn worker() -> Arc<Endpoint> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                thread::spawn(move || {
                    let mut line = String::new();
                    while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                        if line.ends_with("\r\n\r\n") {
                            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                            stream.get_mut().write_all(answer).unwrap();
                            line.clear();
                        }
                    }
                });
            }
        });
        Arc::new(Endpoint::new(0, &url.parse().unwrap()))
    }

    #[test]
    fn a_connection_goes_from_lane_to_lane() {
        let endpoint = worker();
        ask_in_a_lane(&endpoint);
        ask_in_a_lane(&endpoint);
        assert_eq!(endpoint.opened.load(Relaxed), 1);
    }
}
