//! The names of the headers that this project's clients, routers and workers exchange, and the media type of a body.

use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};

/// Carries a request's id to the worker, and back to the client.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// OpenAI's name for an id that a client chooses; it is used if the request has no other id.
pub const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-client-request-id");

/// The class of a request while it waits for its turn: high, normal or low.
pub const PRIORITY: HeaderName = HeaderName::from_static("x-priority");

/// Milliseconds that a request may wait for its turn.
pub const TURN_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// Tells workers which client a request comes from: one opaque word for each client key.
pub const OWNER: HeaderName = HeaderName::from_static("x-sglang-omni-owner");

/// Tells clients which worker served their request.
pub const WORKER: HeaderName = HeaderName::from_static("x-sglang-omni-worker");

/// Lists the names of routers, separated by commas.
pub const ROUTERS: HeaderName = HeaderName::from_static("x-sglang-omni-routers");

/// Lists the names of servers, separated by commas: a server's own, or of all those behind a router.
pub const SERVERS: HeaderName = HeaderName::from_static("x-sglang-omni-servers");

/// The names in a header that lists some.
pub fn names(headers: &HeaderMap, header: &HeaderName) -> Vec<String> {
    let lists = headers.get_all(header).iter();
    lists
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The value of a header that lists names which came in headers.
pub fn list(names: &[&str]) -> HeaderValue {
    HeaderValue::from_str(&names.join(", ")).expect("the names came in headers")
}

/// Whether `Content-Type` names this media type, in any case and with any parameters.
pub fn has_media_type(headers: &HeaderMap, media_type: &str) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let parts = value.as_bytes().split_at_checked(media_type.len());
    parts.is_some_and(|(essence, parameters)| {
        essence.eq_ignore_ascii_case(media_type.as_bytes())
            && matches!(parameters.trim_ascii_start(), [] | [b';', ..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_media_type_do_not_matter() {
        let is_json = |text: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, text.parse().unwrap())]);
            has_media_type(&headers, "application/json")
        };
        assert!(is_json("application/json") && is_json("Application/JSON ; charset=utf-8"));
        assert!(!is_json("application/jsonp") && !is_json("text/plain") && !is_json(""));
        assert!(!has_media_type(&HeaderMap::new(), ""));
    }
}
