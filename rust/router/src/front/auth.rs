//! Keys: which clients are let in, and what the router shows to workers.

use std::fs;
use std::path::Path;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use subtle::ConstantTimeEq;

use crate::config::{Config, ConfigError};

/// Keys as the configuration gave them, read once at the start.
pub struct Keys {
    /// Any of them opens; without one every client is let in.
    clients: Vec<String>,
    /// The `Authorization` that workers see instead of the client's.
    pub worker: Option<HeaderValue>,
}

impl Keys {
    pub fn read(config: &Config) -> Result<Keys, ConfigError> {
        let mut clients = config.api_key.clone();
        if let Some(path) = &config.api_key_file {
            clients.extend(lines("api_key_file", path)?);
        }
        for key in &clients {
            bearer("api_key", key)?;
        }
        let worker = match (&config.worker_api_key, &config.worker_api_key_file) {
            (Some(_), Some(_)) => {
                return Err(ConfigError(
                    "worker_api_key: worker_api_key_file is given as well; give one of them"
                        .to_owned(),
                ));
            }
            (Some(key), None) => Some(bearer("worker_api_key", key)?),
            (None, Some(path)) => match &lines("worker_api_key_file", path)?[..] {
                [key] => Some(bearer("worker_api_key_file", key)?),
                keys => {
                    return Err(ConfigError(format!(
                        "worker_api_key_file: {} holds {} keys; workers are shown one",
                        path.display(),
                        keys.len()
                    )));
                }
            },
            (None, None) => None,
        };
        Ok(Keys { clients, worker })
    }

    /// Whether a request with these headers is let in. The time this takes tells nothing about the keys
    /// but their lengths.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        if self.clients.is_empty() {
            return true;
        }
        let Some(shown) = headers.get(AUTHORIZATION).and_then(token) else {
            return false;
        };
        let matches = self
            .clients
            .iter()
            .map(|key| key.as_bytes().ct_eq(shown))
            .fold(0, |any, same| any | same.unwrap_u8());
        matches == 1
    }
}

/// What follows `Bearer`, whose case does not matter.
fn token(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())
}

fn bearer(field: &str, key: &str) -> Result<HeaderValue, ConfigError> {
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::try_from(format!("Bearer {key}"))
        .ok()
        .filter(|_| is_key);
    let mut value = value.ok_or_else(|| {
        ConfigError(format!(
            "{field}: a key is empty or has other characters than visible ASCII ones"
        ))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The keys in a file, one a line.
fn lines(field: &str, path: &Path) -> Result<Vec<String>, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| {
        ConfigError(format!("{field}: cannot read {}: {error}", path.display()))
    })?;
    let keys: Vec<String> = text
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect();
    if keys.is_empty() {
        return Err(ConfigError(format!(
            "{field}: {} holds no key; write one a line",
            path.display()
        )));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(clients: &[&str]) -> Keys {
        let api_key = clients.iter().map(|&key| key.to_owned()).collect();
        let config = Config {
            api_key,
            ..Config::default()
        };
        Keys::read(&config).unwrap()
    }

    fn admits(keys: &Keys, value: &str) -> bool {
        let headers = [(AUTHORIZATION, HeaderValue::from_str(value).unwrap())];
        keys.admit(&headers.into_iter().collect())
    }

    #[test]
    fn without_a_key_all_are_let_in() {
        assert!(keys(&[]).admit(&HeaderMap::new()));
        assert!(!keys(&["k"]).admit(&HeaderMap::new()));
    }

    #[test]
    fn any_of_the_keys_opens_and_nothing_else_does() {
        let keys = keys(&["first", "second"]);
        for value in ["Bearer first", "bearer second", "BEARER  first "] {
            assert!(admits(&keys, value), "{value}");
        }
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "first",
            "Basic first",
            "Bearer firs",
            "Bearer first2",
        ] {
            assert!(!admits(&keys, value), "{value}");
        }
    }

    #[test]
    fn wrong_keys_are_errors_that_do_not_show_them() {
        let read = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            Keys::read(&config).err().unwrap().to_string()
        };
        let text = read(&|c| c.api_key = vec!["two words".to_owned()]);
        assert!(
            text.contains("api_key") && !text.contains("two words"),
            "{text}"
        );
        let text = read(&|c| c.worker_api_key_file = Some("/none".into()));
        assert!(
            text.contains("worker_api_key_file: cannot read /none"),
            "{text}"
        );
        let text = read(&|c| {
            c.worker_api_key = Some("a".to_owned());
            c.worker_api_key_file = Some("/none".into());
        });
        assert!(text.contains("give one of them"), "{text}");
    }
}
