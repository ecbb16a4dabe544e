//! A client's key among the protocols that its WebSocket offers: a page in a browser can fill no other header of one. The
//! form is OpenAI's.

use hyper::HeaderMap;
use hyper::header::{HeaderValue, SEC_WEBSOCKET_PROTOCOL};

const PREFIX: &str = "openai-insecure-api-key.";

/// The key, if one is shown.
pub fn shown(headers: &HeaderMap) -> Option<&str> {
    protocols(headers).find_map(|name| name.strip_prefix(PREFIX))
}

/// Takes the key out of the protocols.
pub fn hide(headers: &mut HeaderMap) {
    if shown(headers).is_none() {
        return;
    }
    let others: Vec<&str> = protocols(headers)
        .filter(|name| !name.starts_with(PREFIX))
        .collect();
    let others = HeaderValue::try_from(others.join(", ")).expect("it is made of headers' values");
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if !others.is_empty() {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    }
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(',').map(str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(protocols: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols))])
    }

    #[test]
    fn a_key_is_behind_its_prefix() {
        let offer = offering("realtime,openai-insecure-api-key.k, other");
        assert_eq!(shown(&offer), Some("k"));
        assert_eq!(shown(&offering("realtime, k")), None);
        assert_eq!(shown(&HeaderMap::new()), None);
    }

    #[test]
    fn a_hidden_key_leaves_the_other_protocols() {
        let hidden = |protocols| {
            let mut headers = offering(protocols);
            hide(&mut headers);
            headers.get(SEC_WEBSOCKET_PROTOCOL).cloned()
        };
        let named = |text| Some(HeaderValue::from_static(text));
        let offer = "realtime,openai-insecure-api-key.k, other";
        assert_eq!(hidden(offer), named("realtime, other"));
        assert_eq!(hidden("openai-insecure-api-key.k"), None);
        assert_eq!(hidden("graphql-ws"), named("graphql-ws"));
    }
}
