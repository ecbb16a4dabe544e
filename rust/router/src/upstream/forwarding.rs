//! HTTP's rules for a proxy: which headers it removes, which it adds, and how a request's target is passed on.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, MAX_FORWARDS,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use hyper::{HeaderMap, Request, Uri, Version};

const HOP_BY_HOP: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers that proxies add: they say that a request comes from elsewhere.
pub const OF_PROXIES: [HeaderName; 3] = [
    HeaderName::from_static("forwarded"),
    HeaderName::from_static("x-forwarded-for"),
    VIA,
];

/// What frames a request and names its host. A client cannot have it removed by naming it in `Connection`.
const FRAMING: [HeaderName; 3] = [CONTENT_LENGTH, HOST, TRANSFER_ENCODING];

/// Whether a message asks to change protocols. An offer of HTTP/2 (`h2c`, which some clients send with every request)
/// is ignored, as it may be.
pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    let is_other = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"h2c");
    headers.get(UPGRADE).is_some_and(is_other)
        && connection_names(headers).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Removes the headers that `Connection` names, before the router adds any of its own: a client may name those too. What
/// is left of it are its options, which this hop itself understands. Headers that say where a request comes from, and
/// those that frame it, cannot be named.
pub fn strike_named(headers: &mut HeaderMap) {
    const OPTIONS: [&str; 3] = ["close", "keep-alive", "upgrade"];
    let is_option = |name: &str| OPTIONS.iter().any(|known| name.eq_ignore_ascii_case(known));
    if connection_names(headers).all(is_option) {
        return;
    }
    let all = connection_names(headers).map(str::to_ascii_lowercase);
    let (options, named): (Vec<_>, Vec<_>) = all.partition(|name| is_option(name));
    let is_kept = |name: &HeaderName| FRAMING.contains(name) || OF_PROXIES.contains(name);
    let goes = |name: &HeaderName| {
        name == CONNECTION || (!is_kept(name) && named.iter().any(|named| named == name.as_str()))
    };
    // A new map, in which the others keep their order.
    let mut kept = HeaderMap::with_capacity(headers.keys_len());
    for (name, value) in headers.iter().filter(|(name, _)| !goes(name)) {
        kept.append(name.clone(), value.clone());
    }
    if let Ok(left) = HeaderValue::try_from(options.join(", "))
        && !left.is_empty()
    {
        kept.insert(CONNECTION, left);
    }
    *headers = kept;
}

/// Whether the body's framing can be removed here. Other codings are part of the body, and the header that names them
/// would be lost.
pub fn has_known_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_known = |value: &HeaderValue| {
        let value = value.as_bytes();
        value.eq_ignore_ascii_case(b"chunked") || value.eq_ignore_ascii_case(b"identity")
    };
    codings.next().is_none_or(is_known) && codings.next().is_none()
}

/// Whether the request names exactly one host, as HTTP/1.1 demands.
pub fn has_one_host(version: Version, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    (hosts.next().is_some() || version < Version::HTTP_11) && hosts.next().is_none()
}

/// A request's headers for the next hop. `Expect` is removed too: the router itself asks for the body.
pub fn request_headers(headers: HeaderMap) -> HeaderMap {
    end_to_end(headers, &EXPECT)
}

/// Adds this hop to a request's `Via` (RFC 9110 7.6.3). `version` is the one that the request arrived in.
pub fn note_hop(version: Version, headers: &mut HeaderMap) {
    const VIA_1_0: HeaderValue = HeaderValue::from_static("1.0 sglang-omni-router");
    const VIA_1_1: HeaderValue = HeaderValue::from_static("1.1 sglang-omni-router");
    let hop = match version {
        Version::HTTP_10 => VIA_1_0,
        _ => VIA_1_1,
    };
    headers.append(VIA, hop);
}

/// Counts this hop in `Max-Forwards` (RFC 9110 7.6.2); false if the request must end here.
pub fn may_go_on(headers: &mut HeaderMap) -> bool {
    let left = headers.get(MAX_FORWARDS);
    let left = left.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match left {
        Some(0) => false,
        Some(left) => {
            headers.insert(MAX_FORWARDS, HeaderValue::from(left - 1));
            true
        }
        None => true,
    }
}

/// An answer's headers for the client.
pub fn response_headers(headers: HeaderMap) -> HeaderMap {
    end_to_end(headers, &CONNECTION)
}

/// Removes the headers of one connection (the list of RFC 9110 7.6.1, and those that `Connection` names) and `also`;
/// the others keep their order.
fn end_to_end(headers: HeaderMap, also: &HeaderName) -> HeaderMap {
    let is_hop =
        |name: &HeaderName| name == CONNECTION || name == also || HOP_BY_HOP.contains(name);
    if !headers.keys().any(is_hop) {
        return headers;
    }
    let is_named = |name: &HeaderName| {
        connection_names(&headers).any(|named| name.as_str().eq_ignore_ascii_case(named))
    };
    // If a message has chunks and a length, the chunks frame it; passing the length on would let the two hops disagree
    // about where it ends. For the same reason `Connection` cannot remove the length.
    let is_chunked = headers.contains_key(TRANSFER_ENCODING);
    let goes = |name: &HeaderName| {
        if name == CONTENT_LENGTH {
            is_chunked
        } else {
            is_hop(name) || is_named(name)
        }
    };
    let mut kept = HeaderMap::with_capacity(headers.keys_len());
    for (name, value) in &headers {
        if !goes(name) {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

/// Rewrites a target that names a host, which is the form for proxies: the next hop gets its path, and its host
/// replaces the `Host` header.
pub fn to_origin_form<B>(request: &mut Request<B>) {
    let parts = std::mem::take(request.uri_mut()).into_parts();
    if let Some(authority) = parts.authority {
        let host = authority.as_str().rsplit('@').next().unwrap_or_default();
        if let Ok(host) = HeaderValue::from_str(host) {
            request.headers_mut().insert(HOST, host);
        }
    }
    *request.uri_mut() = parts.path_and_query.map_or_else(Uri::default, Uri::from);
}

/// Bytes of all headers, as the limit counts them.
pub fn size(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn hop_by_hop_headers_and_those_named_by_connection_go() {
        let map = request_headers(headers(&[
            ("x-first", "0"),
            ("connection", "close, X-Secret"),
            ("keep-alive", "timeout=5"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("x-kept", "2"),
            ("content-length", "3"),
            ("expect", "100-continue"),
        ]));
        let left: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["x-first", "x-kept", "content-length"]);
    }

    #[test]
    fn what_connection_names_goes_before_anything_is_added() {
        let mut map = headers(&[
            ("connection", "X-Secret, Upgrade"),
            (
                "connection",
                "x-forwarded-for, content-length,, authorization",
            ),
            ("x-secret", "1"),
            ("x-forwarded-for", "10.0.0.1"),
            ("content-length", "3"),
            ("authorization", "Bearer k"),
            ("upgrade", "websocket"),
        ]);
        strike_named(&mut map);
        assert!(wants_upgrade(&map));
        map.insert("x-secret", HeaderValue::from_static("the router's"));
        let map = request_headers(map);
        let mut left: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "x-forwarded-for", "x-secret"]);
        let mut map = headers(&[("connection", "te")]);
        strike_named(&mut map);
        assert!(map.is_empty());
    }

    #[test]
    fn a_length_beside_chunks_goes() {
        let map = response_headers(headers(&[
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
        ]));
        assert!(map.is_empty());
    }

    #[test]
    fn connection_cannot_strike_out_the_length() {
        let map = response_headers(headers(&[
            ("connection", "content-length"),
            ("content-length", "3"),
        ]));
        assert_eq!(map["content-length"], "3");
    }

    #[test]
    fn upgrades_need_both_headers() {
        assert!(wants_upgrade(&headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket")
        ])));
        assert!(!wants_upgrade(&headers(&[
            ("connection", "upgrade, http2-settings"),
            ("upgrade", "h2c")
        ])));
        assert!(!wants_upgrade(&headers(&[("upgrade", "websocket")])));
        assert!(!wants_upgrade(&headers(&[("connection", "upgrade")])));
    }
}
