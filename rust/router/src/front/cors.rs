//! CORS: tells browsers which web pages of other origins may read the router's answers.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method, Request, StatusCode};

use crate::base::config_error::ConfigError;
use crate::proxy::reply::{self, Reply};

/// Seconds for which a browser remembers the permission; the longest that any browser accepts.
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");

#[derive(Debug, Default)]
pub struct Cors {
    origins: Vec<HeaderValue>,
    any: bool,
}

impl Cors {
    pub fn new(origins: &[String]) -> Result<Cors, ConfigError> {
        let mut cors = Cors::default();
        for origin in origins {
            if origin == "*" {
                cors.any = true;
                continue;
            }
            let is_origin = origin.split_once("://").is_some_and(|(scheme, host)| {
                !scheme.is_empty() && !host.is_empty() && !host.contains('/')
            });
            let value = HeaderValue::from_str(origin).ok().filter(|_| is_origin);
            cors.origins.push(value.ok_or_else(|| {
                ConfigError(format!(
                    "cors_allowed_origins: {origin:?} is not an origin; write https://host or https://host:port, or * for any"
                ))
            })?);
        }
        Ok(cors)
    }

    /// The origin of the page that asks, if it is allowed.
    pub fn origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if !self.any && self.origins.is_empty() {
            return None;
        }
        let origin = headers.get(ORIGIN)?;
        (self.any || self.origins.contains(origin)).then(|| origin.clone())
    }
}

/// The answer to a browser's question, which carries no key, whether it may send a request; None for other requests.
pub fn preflight<B>(request: &Request<B>) -> Option<Reply> {
    let headers = request.headers();
    let method = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    if request.method() != Method::OPTIONS {
        return None;
    }
    let mut reply = reply::text(StatusCode::NO_CONTENT, "text/plain", String::new());
    let allowed = reply.headers_mut();
    allowed.clear();
    allowed.insert(ACCESS_CONTROL_ALLOW_METHODS, method.clone());
    if let Some(names) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    allowed.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    Some(reply)
}

/// Lets pages of the origin read the answer. A worker's own CORS headers are replaced: it knows neither the router's
/// address nor its pages.
pub fn allow(origin: HeaderValue, reply: &mut Reply) {
    const EXPOSED: HeaderValue = HeaderValue::from_static("*");
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(VARY, HeaderValue::from_name(ORIGIN));
    // A page may not send cookies along: keys go into a header.
    headers.remove(HeaderName::from_static("access-control-allow-credentials"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str]) -> Result<Cors, ConfigError> {
        let origins: Vec<String> = origins.iter().map(|&origin| origin.to_owned()).collect();
        Cors::new(&origins)
    }

    #[test]
    fn only_allowed_origins_are_let_in() {
        let headers: HeaderMap = [(ORIGIN, HeaderValue::from_static("https://a:1"))]
            .into_iter()
            .collect();
        for (origins, is_allowed) in [
            (&["https://a:1", "https://b"][..], true),
            (&["*"], true),
            (&["https://a"], false),
            (&[], false),
        ] {
            let origin = cors(origins).unwrap().origin(&headers);
            assert_eq!(origin.is_some(), is_allowed, "{origins:?}");
        }
        assert!(cors(&["*"]).unwrap().origin(&HeaderMap::new()).is_none());
    }

    #[test]
    fn what_is_no_origin_is_an_error() {
        for wrong in ["a", "https://a/", "https://a/b", "://a", ""] {
            let error = cors(&[wrong]).unwrap_err().to_string();
            assert!(
                error.contains("cors_allowed_origins") && error.contains("https://host"),
                "{error}"
            );
        }
    }
}
