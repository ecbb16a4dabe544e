//! Finds workers by DNS: each address of a name is one.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use dns_lookup::{AddrInfoHints, LookupErrorKind, SockType, getaddrinfo};
use tokio::task::spawn_blocking;

use crate::base::config_error::ConfigError;

#[derive(Debug)]
pub struct DnsName {
    host: String,
    port: u16,
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl DnsName {
    pub fn parse(text: &str) -> Result<DnsName, ConfigError> {
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let is_name = !host.is_empty() && !host.contains(['/', ':', ' ']);
            let port = port.parse().ok().filter(|&port| port > 0 && is_name)?;
            Some(DnsName {
                host: host.to_owned(),
                port,
            })
        });
        parsed.ok_or_else(|| {
            ConfigError(format!(
                "worker_dns: {text:?} is not NAME:PORT, as in replicas.default.svc:8000"
            ))
        })
    }

    /// A worker's URL for each address, sorted. A name that no longer exists is not an error and has none.
    pub async fn resolve(&self) -> Result<Vec<String>, String> {
        let host = self.host.clone();
        let addresses = spawn_blocking(move || addresses(&host))
            .await
            .map_err(|error| error.to_string())??;
        Ok(urls(addresses, self.port))
    }
}

fn addresses(host: &str) -> Result<Vec<IpAddr>, String> {
    let hints = AddrInfoHints {
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    match getaddrinfo(Some(host), None, Some(hints)) {
        Ok(found) => found
            .map(|info| info.map(|info| info.sockaddr.ip()))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string()),
        Err(error) => match error.kind() {
            LookupErrorKind::NoName | LookupErrorKind::NoData => Ok(Vec::new()),
            _ => Err(std::io::Error::from(error).to_string()),
        },
    }
}

/// A host with an IPv4 and an IPv6 address is one worker: IPv6 counts only if there is no IPv4.
fn urls(mut addresses: Vec<IpAddr>, port: u16) -> Vec<String> {
    if addresses.iter().any(IpAddr::is_ipv4) {
        addresses.retain(IpAddr::is_ipv4);
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
        .into_iter()
        .map(|ip| format!("http://{}", SocketAddr::new(ip, port)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_port() {
        assert_eq!(DnsName::parse("a.b:80").unwrap().to_string(), "a.b:80");
        for text in [
            "a",
            "a:",
            ":1",
            "a:0",
            "a:x",
            "http://a:1",
            "a:70000",
            "::1:80",
        ] {
            let error = DnsName::parse(text).unwrap_err().to_string();
            assert!(error.contains("NAME:PORT"), "{error}");
        }
    }

    #[test]
    fn every_address_is_a_worker_once() {
        let found = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect();
        let of = |list: &[&str]| urls(found(list), 8);
        assert_eq!(
            of(&["10.0.0.2", "10.0.0.1", "10.0.0.2"]),
            ["http://10.0.0.1:8", "http://10.0.0.2:8"]
        );
        assert_eq!(of(&["::1", "127.0.0.1"]), ["http://127.0.0.1:8"]);
        assert_eq!(
            of(&["fe::2", "fe::1"]),
            ["http://[fe::1]:8", "http://[fe::2]:8"]
        );
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn the_system_resolves() {
        let found = addresses("localhost").unwrap();
        assert!(found.iter().all(|ip| ip.is_loopback()) && !found.is_empty());
    }
}
