//! Keys: which clients are let in, and what the router shows to workers.

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use ring::hmac;
use subtle::ConstantTimeEq;

use crate::app::config::Config;
use crate::base::config_error::ConfigError;
use crate::base::keys::{bearer, lines, one_key};

/// What an owner's word is made with if workers have no key: they see the client's own then.
const OWNER_LABEL: &[u8] = b"sglang-omni-owner";

/// Keys as the configuration gave them, read once at the start.
pub struct Keys {
    /// Any of them opens; without one every client is let in.
    clients: Vec<ClientKey>,
    /// Opens what administers the router, and nothing else.
    admin: Option<String>,
    /// The `Authorization` that workers see instead of the client's.
    pub worker: Option<HeaderValue>,
}

struct ClientKey {
    key: String,
    owner: HeaderValue,
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
        let worker = one_key(
            "worker_api_key",
            config.worker_api_key.as_deref(),
            config.worker_api_key_file.as_deref(),
        )?;
        let admin = one_key(
            "admin_api_key",
            config.admin_api_key.as_deref(),
            config.admin_api_key_file.as_deref(),
        )?;
        let secret = worker
            .as_ref()
            .map_or(OWNER_LABEL, |(key, _)| key.as_bytes());
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let clients = clients.into_iter().map(|key| ClientKey {
            owner: owner(&secret, &key),
            key,
        });
        Ok(Keys {
            clients: clients.collect(),
            admin: admin.map(|(key, _)| key),
            worker: worker.map(|(_, value)| value),
        })
    }

    /// Whether a client has to show a key.
    pub fn are_needed(&self) -> bool {
        !self.clients.is_empty()
    }

    /// The owner's word of the client key that these headers show, if it is one. The time this takes tells
    /// nothing about the keys but their lengths.
    pub fn owner(&self, headers: &HeaderMap) -> Option<&HeaderValue> {
        let shown = headers.get(AUTHORIZATION).and_then(token)?;
        let mut owner = None;
        for client in &self.clients {
            if client.key.as_bytes().ct_eq(shown).into() {
                owner = Some(&client.owner);
            }
        }
        owner
    }

    pub fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// Whether these headers show the admin key.
    pub fn is_admin(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.admin else {
            return false;
        };
        let shown = headers.get(AUTHORIZATION).and_then(token);
        shown.is_some_and(|shown| key.as_bytes().ct_eq(shown).into())
    }
}

fn owner(secret: &hmac::Key, key: &str) -> HeaderValue {
    let tag = hmac::sign(secret, key.as_bytes());
    let word: String = tag.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    HeaderValue::try_from(word).expect("hexadecimal digits are visible")
}

/// What follows `Bearer`, whose case does not matter.
fn token(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())
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
        keys.owner(&shown(value)).is_some()
    }

    fn shown(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn without_a_key_none_is_needed() {
        assert!(!keys(&[]).are_needed());
        assert!(keys(&["k"]).are_needed());
        assert!(keys(&["k"]).owner(&HeaderMap::new()).is_none());
    }

    #[test]
    fn owners_are_told_apart_by_words_that_the_workers_key_makes() {
        let of = |worker: Option<&str>, client: &str| {
            let config = Config {
                api_key: vec!["a".to_owned(), "b".to_owned()],
                worker_api_key: worker.map(str::to_owned),
                ..Config::default()
            };
            let keys = Keys::read(&config).unwrap();
            keys.owner(&shown(&format!("Bearer {client}"))).cloned()
        };
        let words = [of(None, "a"), of(None, "b"), of(Some("w"), "a")];
        assert!(words.iter().flatten().all(|word| word.len() == 32));
        assert!(words[0] != words[1] && words[0] != words[2]);
        assert_eq!(words[0], of(None, "a"));
        assert_eq!(of(None, "c"), None);
    }

    #[test]
    fn the_admin_key_is_no_clients() {
        let keys = Keys::read(&Config {
            api_key: vec!["client".to_owned()],
            admin_api_key: Some("admin".to_owned()),
            ..Config::default()
        });
        let keys = keys.unwrap();
        let (admin, client) = (shown("Bearer admin"), shown("Bearer client"));
        assert!(keys.is_admin(&admin) && !keys.is_admin(&client));
        assert!(keys.owner(&admin).is_none() && keys.owner(&client).is_some());
        assert!(!keys.is_admin(&HeaderMap::new()));
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
