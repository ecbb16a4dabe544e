//! Decides which requests may administer the router: change its fleet or its workers' state, or read about them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request};

use crate::base::headers::has_media_type;
use crate::front::auth::AccessKeys;
use crate::front::cross_site;
use crate::proxy::reply::{Reason, Refusal};
use crate::upstream::forwarding::OF_PROXIES;

/// Whether a path is for administrators only.
pub fn is_administrative(path: &str) -> bool {
    matches!(
        path,
        "/workers"
            | "/list_workers"
            | "/add_worker"
            | "/remove_worker"
            | "/flush_cache"
            | "/start_profile"
            | "/stop_profile"
            | "/get_server_info"
            | "/server_info"
    ) || path.starts_with("/workers/")
}

/// Admits a request that shows the admin key or, if there is no such key, a request from this machine, which shows a
/// client's key if clients have any. A web page of another origin, or under a name that is not the router's, may change nothing even if it knows the key.
pub fn allow(
    keys: &AccessKeys,
    own_names: &[String],
    peer: SocketAddr,
    request: &Request<Incoming>,
) -> Result<(), Refusal> {
    let headers = request.headers();
    let has_key = keys.is_admin(headers);
    if keys.has_admin() && !has_key {
        return Err(match keys.owner(headers) {
            Some(_) => Refusal::new(
                Reason::AdminKeyNeeded,
                "a client's key does not administer the router: send the one of --admin-api-key",
            ),
            None => Refusal::new(
                Reason::InvalidApiKey,
                "the router's admin key is needed: send it as \"Authorization: Bearer KEY\"",
            ),
        });
    }
    // Where clients need a key, so do administrators: something on this machine may pass on what comes from elsewhere.
    if !has_key && keys.are_needed() && keys.owner(headers).is_none() {
        return Err(Refusal::new(
            Reason::InvalidApiKey,
            "administration needs a key here: give the router an --admin-api-key and show that, or show a client's \
             key from the router's own machine",
        ));
    }
    if !has_key && !is_from_here(peer.ip(), headers) {
        return Err(Refusal::new(
            Reason::AdminKeyNeeded,
            "without --admin-api-key the router is administered from its own machine only, and not through a \
             proxy",
        ));
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_read && has_key {
        return Ok(());
    }
    if cross_site::is_of_another_origin(headers) {
        return Err(Refusal::new(
            Reason::CrossSiteRequest,
            "a web page of another origin does not administer the router, not even one of \
             --cors-allowed-origins",
        ));
    }
    if !cross_site::names_this_router(headers, own_names) {
        return Err(Refusal::new(
            Reason::UnknownHost,
            "the Host header does not name this router: administer it by its address, or name it in \
             --allowed-hosts",
        ));
    }
    if !is_read && !is_json_if_any(request) {
        return Err(Refusal::new(
            Reason::UnsupportedMediaType,
            "a body here is JSON: send it with \"Content-Type: application/json\"",
        ));
    }
    Ok(())
}

fn is_from_here(peer: IpAddr, headers: &HeaderMap) -> bool {
    // Of the other loopback addresses, proxies on this machine use some as the source of what comes from elsewhere.
    let own = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    own.contains(&peer.to_canonical()) && !OF_PROXIES.iter().any(|name| headers.contains_key(name))
}

fn is_json_if_any(request: &Request<Incoming>) -> bool {
    match request.headers().contains_key(CONTENT_TYPE) {
        true => has_media_type(request.headers(), "application/json"),
        false => request.body().is_end_stream(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_itself_is_here() {
        let none = HeaderMap::new();
        let is_here = |ip: &str| is_from_here(ip.parse().unwrap(), &none);
        assert!(is_here("127.0.0.1") && is_here("::1"));
        assert!(!is_here("127.0.0.6") && !is_here("::ffff:127.9.9.9"));
        assert!(is_here("::ffff:127.0.0.1"));
        assert!(!is_here("10.0.0.1") && !is_here("::ffff:10.0.0.1"));
        for name in OF_PROXIES {
            let headers = HeaderMap::from_iter([(name, "x".parse().unwrap())]);
            assert!(!is_from_here("127.0.0.1".parse().unwrap(), &headers));
        }
    }
}
