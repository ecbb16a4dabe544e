//! Remembers which worker has the conversation of a session, so that its requests meet there under every policy.
//!
//! A client names a session by the header `x-session-id`. The sessions of one client are not those of another. They are
//! kept by the hash of their names in buckets of a fixed size, like the lines of a processor's cache: where a bucket is
//! full, the session in it that was used least lately is forgotten.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use rapidhash::v3::rapidhash_v3;

use crate::base::clock::{Tick, ticks};
use crate::base::headers::OWNER;

pub const SESSION: HeaderName = HeaderName::from_static("x-session-id");

/// 131,072 sessions in 2 MiB, which are taken with the first of them.
const BUCKETS: usize = 8192;
const IN_A_BUCKET: usize = 16;

/// A session that was not used for an hour is a new one: little of it is cached, and new workers get some.
const KEPT: std::time::Duration = std::time::Duration::from_secs(3600);

/// A session's name and its client, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session(u64);

impl Session {
    /// None if a request names no session.
    pub fn of(headers: &HeaderMap) -> Option<Session> {
        let name = headers.get(SESSION)?.as_bytes();
        if name.is_empty() {
            return None;
        }
        let client = headers.get(OWNER).or_else(|| headers.get(AUTHORIZATION));
        let client = client.map_or(0, |client| rapidhash_v3(client.as_bytes()));
        let pair = [rapidhash_v3(name), client].map(u64::to_le_bytes);
        Some(Session(rapidhash_v3(pair.as_flattened())))
    }
}

#[derive(Clone, Copy, Default)]
struct Place {
    session: u64,
    worker: u32,
    /// 0 if the place is free.
    used: Tick,
}

type Bucket = Mutex<[Place; IN_A_BUCKET]>;

#[derive(Default)]
pub struct Sessions {
    buckets: OnceLock<Box<[Bucket]>>,
    /// Sessions that were placed for the first time, or again after they were forgotten.
    pub begun: AtomicU64,
    /// Sessions that went to another worker, since theirs could not take them.
    pub moved: AtomicU64,
}

impl Sessions {
    /// The id of the worker that has the session; None if it is not known.
    pub fn worker(&self, session: Session, now: Tick) -> Option<u32> {
        let bucket = self.buckets.get()?[index(session)].lock().unwrap();
        let place = bucket.iter().find(|place| place.is(session, now))?;
        Some(place.worker)
    }

    /// The session's request goes to this worker.
    pub fn place(&self, session: Session, worker: u32, now: Tick) {
        let buckets = self.buckets.get_or_init(|| {
            let buckets = (0..BUCKETS).map(|_| Bucket::default());
            buckets.collect()
        });
        let mut bucket = buckets[index(session)].lock().unwrap();
        let known = bucket.iter().position(|place| place.is(session, now));
        let at = known.unwrap_or_else(|| {
            self.begun.fetch_add(1, Relaxed);
            let places = bucket.iter().enumerate();
            let (oldest, _) = places.min_by_key(|(_, place)| place.used).expect("16");
            oldest
        });
        if known.is_some() && bucket[at].worker != worker {
            self.moved.fetch_add(1, Relaxed);
        }
        bucket[at] = Place {
            session: session.0,
            worker,
            used: now,
        };
    }
}

impl Place {
    fn is(&self, session: Session, now: Tick) -> bool {
        self.used > 0 && self.session == session.0 && now.saturating_sub(self.used) < ticks(KEPT)
    }
}

fn index(session: Session) -> usize {
    session.0 as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn session(name: &str, client: Option<&str>) -> Option<Session> {
        let mut headers = HeaderMap::new();
        headers.insert(SESSION, HeaderValue::from_str(name).unwrap());
        if let Some(client) = client {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(client).unwrap());
        }
        Session::of(&headers)
    }

    #[test]
    fn each_client_has_sessions_of_its_own() {
        assert_eq!(Session::of(&HeaderMap::new()), None);
        assert_eq!(session("", Some("Bearer a")), None);
        let mine = session("1", Some("Bearer a"));
        assert_eq!(mine, session("1", Some("Bearer a")));
        for other in [
            session("1", Some("Bearer b")),
            session("1", None),
            session("2", Some("Bearer a")),
        ] {
            assert_ne!(mine, other);
        }
    }

    #[test]
    fn a_session_stays_for_an_hour_after_its_last_request() {
        let sessions = Sessions::default();
        let session = session("1", None).unwrap();
        let hour = ticks(KEPT);
        assert_eq!(sessions.worker(session, 1), None);
        sessions.place(session, 7, 1);
        assert_eq!(sessions.worker(session, hour), Some(7));
        sessions.place(session, 8, hour);
        assert_eq!(sessions.worker(session, 2 * hour - 1), Some(8));
        assert_eq!(sessions.worker(session, 2 * hour), None);
        sessions.place(session, 9, 2 * hour);
        let counts = [&sessions.begun, &sessions.moved].map(|count| count.load(Relaxed));
        assert_eq!(counts, [2, 1]);
    }

    #[test]
    fn a_full_bucket_forgets_the_session_used_least_lately() {
        let sessions = Sessions::default();
        let same = |nth: usize| Session((nth * BUCKETS) as u64 + 5);
        for nth in 0..IN_A_BUCKET {
            sessions.place(same(nth), nth as u32, 1 + nth as Tick);
        }
        sessions.place(same(0), 0, 100);
        sessions.place(same(IN_A_BUCKET), 99, 101);
        let known = |nth| sessions.worker(same(nth), 102);
        assert_eq!((known(0), known(1), known(2)), (Some(0), None, Some(2)));
        assert_eq!(known(IN_A_BUCKET), Some(99));
        // The other buckets are as they were.
        assert_eq!(sessions.worker(Session(6), 102), None);
    }
}
