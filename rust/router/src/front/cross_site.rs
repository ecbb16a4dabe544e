//! Recognises requests that a web page makes its visitor's browser send. A page can reach all that the browser can,
//! even a router on the visitor's own machine, and needs no permission for a plain POST. Browsers say where such a
//! request comes from.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;

use crate::front::cors::Cors;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a page of another origin sent the request, and not one of those that may read answers.
pub fn is_foreign(headers: &HeaderMap, cors: &Cors) -> bool {
    let Some(origin) = headers.get(ORIGIN) else {
        return headers
            .get(FETCH_SITE)
            .is_some_and(|site| site == "cross-site");
    };
    !is_own(origin, headers) && cors.origin(headers).is_none()
}

/// Whether a page of any other origin sent the request.
pub fn is_of_another_origin(headers: &HeaderMap) -> bool {
    let is_other = |site: &HeaderValue| site == "cross-site" || site == "same-site";
    headers
        .get(ORIGIN)
        .is_some_and(|origin| !is_own(origin, headers))
        || headers.get(FETCH_SITE).is_some_and(is_other)
}

/// Whether the origin is the host that the request was sent to. The scheme is not compared: TLS may end before this
/// router.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let authority = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    matches!((authority, host), (Some((_, own)), Some(host)) if host.eq_ignore_ascii_case(own.as_bytes()))
}

/// Whether `Host` is an address or one of the router's `own` names; `*` allows any. If a page's own name was made to
/// resolve to this router, its browser sees the same origin, but `Host` has the page's name.
pub fn names_this_router(headers: &HeaderMap, own: &[String]) -> bool {
    let Some(host) = headers.get(HOST) else {
        return true; // The request is HTTP/1.0, which no browser speaks.
    };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let name = authority.host();
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
        || is("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || own.iter().any(|known| known == "*" || is(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn browsers_say_where_a_request_comes_from() {
        let cors = Cors::default();
        for (lines, is_foreign_here, is_other) in [
            (&[("host", "a:1")][..], false, false),
            (&[("host", "a:1"), ("origin", "http://A:1")], false, false),
            (&[("host", "a:1"), ("origin", "https://a:1")], false, false),
            (&[("host", "a:1"), ("origin", "http://a:2")], true, true),
            (&[("host", "a:1"), ("origin", "null")], true, true),
            (&[("origin", "http://a")], true, true),
            (&[("sec-fetch-site", "cross-site")], true, true),
            (&[("sec-fetch-site", "same-site")], false, true),
            (&[("sec-fetch-site", "same-origin")], false, false),
            (&[("sec-fetch-site", "none")], false, false),
        ] {
            let headers = headers(lines);
            assert_eq!(is_foreign(&headers, &cors), is_foreign_here, "{lines:?}");
            assert_eq!(is_of_another_origin(&headers), is_other, "{lines:?}");
        }
    }

    #[test]
    fn a_router_is_known_by_its_addresses_and_names() {
        let own = ["router".to_owned(), "Other.internal".to_owned()];
        let is_known = |host: &str| names_this_router(&headers(&[("host", host)]), &own);
        for host in [
            "1.2.3.4",
            "[::1]:7",
            "localhost:1",
            "x.LOCALHOST",
            "router:3",
            "other.internal",
        ] {
            assert!(is_known(host), "{host}");
        }
        for host in [
            "evil",
            "1.2.3.4.evil",
            "localhost.evil",
            "evillocalhost",
            "a b",
        ] {
            assert!(!is_known(host), "{host}");
        }
        assert!(names_this_router(&HeaderMap::new(), &own));
    }
}
