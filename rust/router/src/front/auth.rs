//! Checks the keys of clients and administrators, and holds the key that workers are shown.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use ring::hmac;
use subtle::ConstantTimeEq;

use crate::base::keys::TenantKey;
use crate::base::protocol_key;

/// The secret for owners' words if workers have no key. Workers then see the client's own key anyway.
const OWNER_LABEL: &[u8] = b"sglang-omni-owner";

pub struct AccessKeys {
    /// A client must show one of them; if there are none, every client is admitted.
    clients: Vec<ClientKey>,
    /// The key for administration, and for nothing else.
    admin: Option<String>,
    /// The `Authorization` that workers see instead of the client's.
    pub worker: Option<HeaderValue>,
}

pub struct ClientKey {
    key: String,
    /// A word for its owner that reveals nothing about the key.
    pub owner: HeaderValue,
    /// The tenant that it belongs to, or the owner's word if none was named.
    pub tenant: Arc<str>,
}

impl AccessKeys {
    /// Takes the clients' keys, the administrator's, and the key that workers are shown, with its header.
    pub fn new(
        clients: Vec<TenantKey>,
        admin: Option<String>,
        worker: Option<(String, HeaderValue)>,
    ) -> AccessKeys {
        let secret = worker
            .as_ref()
            .map_or(OWNER_LABEL, |(key, _)| key.as_bytes());
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        // No key has a space in it, so that none has a tenant's word.
        let clients = clients.into_iter().map(|TenantKey { key, tenant }| {
            let owner = match &tenant {
                Some(tenant) => owner(&secret, &format!("tenant {tenant}")),
                None => owner(&secret, &key),
            };
            let word = || owner.to_str().expect("it is hexadecimal").to_owned();
            ClientKey {
                tenant: tenant.unwrap_or_else(word).into(),
                owner,
                key,
            }
        });
        AccessKeys {
            clients: clients.collect(),
            admin,
            worker: worker.map(|(_, value)| value),
        }
    }

    /// Whether a client must show a key.
    pub fn are_needed(&self) -> bool {
        !self.clients.is_empty()
    }

    /// The client key in these headers, if it is one of the keys. The time that this takes reveals
    /// nothing about the keys but their lengths.
    pub fn client(&self, headers: &HeaderMap) -> Option<&ClientKey> {
        let shown = match headers.get(AUTHORIZATION) {
            Some(value) => token(value)?,
            None => protocol_key::shown(headers)?.as_bytes(),
        };
        let mut found = None;
        for client in &self.clients {
            if client.key.as_bytes().ct_eq(shown).into() {
                found = Some(client);
            }
        }
        found
    }

    /// The owner's word for the client key in these headers.
    pub fn owner(&self, headers: &HeaderMap) -> Option<&HeaderValue> {
        self.client(headers).map(|client| &client.owner)
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

fn owner(secret: &hmac::Key, text: &str) -> HeaderValue {
    let tag = hmac::sign(secret, text.as_bytes());
    let word: String = tag.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    HeaderValue::try_from(word).expect("hexadecimal digits are visible")
}

/// The token after `Bearer`, which may be in any case.
fn token(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())
}

#[cfg(test)]
mod tests {
    use hyper::header::SEC_WEBSOCKET_PROTOCOL;

    use super::*;

    fn keys(clients: &[&str]) -> AccessKeys {
        AccessKeys::new(
            clients.iter().map(|&key| of(None, key)).collect(),
            None,
            None,
        )
    }

    fn of(tenant: Option<&str>, key: &str) -> TenantKey {
        TenantKey {
            key: key.to_owned(),
            tenant: tenant.map(str::to_owned),
        }
    }

    fn admits(keys: &AccessKeys, value: &str) -> bool {
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
        let word = |worker: Option<&str>, client: &str| {
            let worker = worker.map(|key| (key.to_owned(), HeaderValue::from_static("Bearer w")));
            let keys = AccessKeys::new(vec![of(None, "a"), of(None, "b")], None, worker);
            keys.owner(&shown(&format!("Bearer {client}"))).cloned()
        };
        let words = [word(None, "a"), word(None, "b"), word(Some("w"), "a")];
        assert!(words.iter().flatten().all(|word| word.len() == 32));
        assert!(words[0] != words[1] && words[0] != words[2]);
        assert_eq!(words[0], word(None, "a"));
        assert_eq!(word(None, "c"), None);
    }

    #[test]
    fn the_keys_of_a_tenant_are_one_owner() {
        let clients = [
            (Some("blue"), "a"),
            (Some("blue"), "b"),
            (Some("red"), "c"),
            (None, "blue"),
        ];
        let clients = clients.map(|(tenant, key)| of(tenant, key)).to_vec();
        let keys = AccessKeys::new(clients, None, None);
        let words = ["a", "b", "c", "blue"].map(|key| keys.owner(&shown(&format!("Bearer {key}"))));
        assert!(words.iter().all(Option::is_some));
        assert_eq!(words[0], words[1]);
        assert!(words[0] != words[2] && words[0] != words[3]);
    }

    #[test]
    fn the_admin_key_is_no_clients() {
        let keys = AccessKeys::new(vec![of(None, "client")], Some("admin".to_owned()), None);
        let (admin, client) = (shown("Bearer admin"), shown("Bearer client"));
        assert!(keys.is_admin(&admin) && !keys.is_admin(&client));
        assert!(keys.owner(&admin).is_none() && keys.owner(&client).is_some());
        assert!(!keys.is_admin(&HeaderMap::new()));
    }

    #[test]
    fn a_key_may_be_among_a_websockets_protocols() {
        let keys = keys(&["first"]);
        let offer = HeaderValue::from_static("realtime, openai-insecure-api-key.first");
        let mut headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, offer)]);
        assert!(keys.owner(&headers).is_some());
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer second"));
        assert!(keys.owner(&headers).is_none());
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
}
