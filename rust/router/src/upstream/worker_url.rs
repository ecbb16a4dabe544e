//! Parses and normalises a worker's URL, without making a worker of it.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use hyper::header::HeaderValue;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::base::config_error::ConfigError;

/// `http://host:port` or `https://host:port`.
#[derive(Clone, Debug)]
pub struct WorkerUrl {
    text: String,
    pub host: String,
    pub port: u16,
    pub authority: HeaderValue,
    /// The whole URL.
    pub header: HeaderValue,
    /// The name that the worker's certificate must be for; None without TLS.
    pub certified_as: Option<ServerName<'static>>,
}

impl WorkerUrl {
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for WorkerUrl {
    type Err = ConfigError;

    fn from_str(given: &str) -> Result<WorkerUrl, ConfigError> {
        let wrong = |what: &str| {
            ConfigError(format!(
                "worker url {given:?}: {what}; the right form is http://host:port or https://host:port"
            ))
        };
        let uri: Uri = given.trim().parse().map_err(|_| wrong("is not a URL"))?;
        let (scheme, default_port) = match uri.scheme_str() {
            Some("http") => ("http", 80),
            Some("https") => ("https", 443),
            Some(other) => return Err(wrong(&format!("scheme {other:?} is not supported"))),
            None => return Err(wrong("has no scheme")),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong(
                "must not have a path, paths of requests are passed through as they are",
            ));
        }
        let authority = uri.authority().ok_or_else(|| wrong("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("must not hold a user name"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(wrong("has no host"));
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str().ends_with(':')
                || authority.as_str().len() > authority.host().len() =>
            {
                return Err(wrong("has a port outside 1..65535"));
            }
            None => default_port,
        };
        let certified_as = match scheme {
            "https" => {
                let name = ServerName::try_from(host.clone());
                Some(name.map_err(|_| wrong("has a host that no certificate can be for"))?)
            }
            _ => None,
        };
        let text = format!("{scheme}://{authority}");
        let header = |text: &str| HeaderValue::from_str(text).map_err(|_| wrong("is not a URL"));
        Ok(WorkerUrl {
            header: header(&text)?,
            authority: header(authority.as_str())?,
            text,
            host,
            port,
            certified_as,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_normalised() {
        for (given, text, port) in [
            ("http://10.0.0.1:8000/", "http://10.0.0.1:8000", 8000),
            (" http://replica ", "http://replica", 80),
            ("http://[::1]:9", "http://[::1]:9", 9),
            ("https://replica/", "https://replica", 443),
            ("https://[::1]:9", "https://[::1]:9", 9),
        ] {
            let url: WorkerUrl = given.parse().unwrap();
            assert_eq!((url.as_str(), url.port), (text, port));
        }
    }

    #[test]
    fn wrong_urls_say_what_is_right() {
        for url in [
            "10.0.0.1:8000",
            "localhost",
            "https://-:1",
            "ftp://a:1",
            "http://",
            "http://a:1/v1",
            "http://a:99999",
            "http://u@a:1",
            "",
        ] {
            let text = url
                .parse::<WorkerUrl>()
                .err()
                .unwrap_or_else(|| panic!("{url:?} was taken"))
                .to_string();
            assert!(text.contains("http://host:port"), "{text}");
        }
    }
}
