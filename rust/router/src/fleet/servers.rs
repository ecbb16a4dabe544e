//! Finds the worker that keeps a response.
//!
//! Each server process has a name, which no other has. The ids of the responses that it keeps begin with it
//! (`resp_NAME_...`), and its `/health` lists it; a router's `/health` lists those of all servers behind it. So every
//! router knows a response's worker by its id, also after a restart, and remembers nothing of any response.

use std::collections::BTreeSet;
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderValue};

use crate::base::headers::{self, SERVERS};
use crate::fleet::worker::{Fleet, Worker};

const RESPONSES: &str = "/v1/responses";

/// Takes note of a worker's answer to a health check.
pub fn learn(worker: &Worker, answer: &HeaderMap) {
    let names = headers::names(answer, &SERVERS);
    if **worker.servers.load() != names {
        worker.servers.store(names.into());
    }
}

/// The list of servers with which a router answers health checks; None if it knows none.
pub fn list(fleet: &Fleet) -> Option<HeaderValue> {
    let fleet = fleet.read();
    let lists: Vec<_> = fleet.iter().map(|worker| worker.servers.load()).collect();
    let names: BTreeSet<&str> = lists
        .iter()
        .flat_map(|names| names.iter())
        .map(String::as_str)
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| headers::list(&names))
}

/// Whether a request makes a response, which may follow a kept one.
pub fn makes_response(path: &str) -> bool {
    path == RESPONSES
}

/// The id of the worker that keeps the response that a request asks for or follows. None if there is no such response
/// or its id names no worker's server: others' ids name none.
pub fn keeper(fleet: &[Arc<Worker>], path: &str, previous: &[u8]) -> Option<u32> {
    let id = match path.strip_prefix(RESPONSES)? {
        "" => std::str::from_utf8(previous).ok()?,
        below => below.strip_prefix('/')?.split('/').next()?,
    };
    let rest = id.strip_prefix("resp_")?;
    let (name, _) = rest.split_once('_')?;
    let keeps = |worker: &&Arc<Worker>| worker.servers.load().iter().any(|known| known == name);
    fleet.iter().find(keeps).map(|worker| worker.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::worker::testing::fleet;

    #[test]
    fn the_id_of_a_response_names_its_worker() {
        let fleet = fleet(2);
        let names = HeaderMap::from_iter([(SERVERS, HeaderValue::from_static("c0, ab"))]);
        learn(&fleet[1], &names);
        let keeper = |path: &str, previous: &str| keeper(&fleet, path, previous.as_bytes());
        let second = Some(fleet[1].id);
        assert_eq!(keeper("/v1/responses", "resp_ab_1"), second);
        assert_eq!(keeper("/v1/responses/resp_c0_1", ""), second);
        assert_eq!(keeper("/v1/responses/resp_ab_1/cancel", "other"), second);
        for (path, previous) in [
            ("/v1/responses", ""),
            ("/v1/responses", "resp_ab"),
            ("/v1/responses", "resp_b_1"),
            ("/v1/responses", "resp_\u{fffd}_1"),
            ("/v1/responses/resp_zz_1", "resp_ab_1"),
            ("/v1/responses2/resp_ab_1", "resp_ab_1"),
            ("/v1/chat/completions", "resp_ab_1"),
        ] {
            assert_eq!(keeper(path, previous), None, "{path} {previous}");
        }
        learn(&fleet[1], &HeaderMap::new());
        assert_eq!(keeper("/v1/responses", "resp_ab_1"), None);
    }
}
