//! Where a worker publishes its events.

use serde_json::Value;

use crate::base::config_error::ConfigError;

/// The ranks of one worker that may be followed.
const MAX_RANKS: u16 = 32;

/// The option: which workers' events are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvents {
    Off,
    /// Of the workers that say in `/get_server_info` that they publish them.
    Auto,
    /// Of all workers, as if each had said this.
    As(EventSource),
}

impl KvEvents {
    /// `off`, `auto`, or the JSON that the engines take as `--kv-events-config`.
    pub fn parse(text: &str) -> Result<KvEvents, ConfigError> {
        let fail = |what: &str| ConfigError(format!("kv_events: {text:?} {what}"));
        match text {
            "off" => return Ok(KvEvents::Off),
            "auto" => return Ok(KvEvents::Auto),
            _ => {}
        }
        let json: Value = serde_json::from_str(text).map_err(|_| {
            fail("is none of off, auto, or the JSON that workers got as --kv-events-config")
        })?;
        match EventSource::of_config(&json, json["dp_size"].as_u64()) {
            Ok(Some(source)) => Ok(KvEvents::As(source)),
            Ok(None) => Err(fail("publishes nothing; it needs \"publisher\": \"zmq\"")),
            Err(why) => Err(fail(&why)),
        }
    }
}

/// Ports of a worker's host. Rank `n` of a worker with data parallel ranks has the ports `n` above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    pub port: u16,
    /// Where batches can be had again, if anywhere.
    pub replay_port: Option<u16>,
    pub topic: String,
    pub ranks: u16,
}

impl EventSource {
    /// What `/get_server_info` says; None if the worker publishes nothing.
    pub fn of_server_info(info: &Value) -> Result<Option<EventSource>, String> {
        if info["kv_events"].is_object() {
            return EventSource::of_description(&info["kv_events"]).map(Some);
        }
        let parsed;
        let config = match &info["kv_events_config"] {
            // SGLang shows the flag as it was given.
            Value::String(text) => {
                parsed = serde_json::from_str(text).map_err(|error| error.to_string())?;
                &parsed
            }
            other => other,
        };
        EventSource::of_config(config, info["dp_size"].as_u64())
    }

    /// What SGLang makes of the flag, from 0.5.20 or so on.
    fn of_description(described: &Value) -> Result<EventSource, String> {
        let port = |name: &str| {
            described[name]
                .as_u64()
                .and_then(|port| u16::try_from(port).ok())
        };
        let first = port("endpoint_port_base");
        let source = EventSource {
            port: first.ok_or("describes its kv_events without endpoint_port_base")?,
            replay_port: port("replay_endpoint_port_base"),
            topic: described["topic"].as_str().unwrap_or("").to_owned(),
            ranks: ranks(described["dp_size"].as_u64()),
        };
        let last = source.port.max(source.replay_port.unwrap_or(0));
        match last.checked_add(source.ranks) {
            Some(_) if source.port > 0 => Ok(source),
            _ => Err(format!("describes kv_events at port {}", source.port)),
        }
    }

    fn of_config(config: &Value, ranks: Option<u64>) -> Result<Option<EventSource>, String> {
        // vLLM needs a switch beside the publisher, whose default depends on it.
        let is_enabled = config["enable_kv_cache_events"].as_bool();
        let publishes = match config["publisher"].as_str() {
            Some(publisher) => publisher == "zmq" && is_enabled != Some(false),
            None => is_enabled == Some(true),
        };
        if !publishes {
            return Ok(None);
        }
        let endpoint = config["endpoint"].as_str().unwrap_or("tcp://*:5557");
        let replay = config["replay_endpoint"].as_str();
        let ranks = self::ranks(ranks);
        let port = |endpoint: &str| {
            let port = endpoint
                .strip_prefix("tcp://")
                .and_then(|rest| rest.rsplit_once(':'));
            let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
            port.filter(|&port| port > 0 && port.checked_add(ranks - 1).is_some())
                .ok_or_else(|| format!("has the endpoint {endpoint:?}, which is not tcp://*:PORT"))
        };
        Ok(Some(EventSource {
            port: port(endpoint)?,
            replay_port: replay.map(port).transpose()?,
            topic: config["topic"].as_str().unwrap_or("").to_owned(),
            ranks,
        }))
    }
}

fn ranks(given: Option<u64>) -> u16 {
    given.unwrap_or(1).clamp(1, MAX_RANKS.into()) as u16
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(port: u16, replay_port: Option<u16>, topic: &str, ranks: u16) -> EventSource {
        EventSource {
            port,
            replay_port,
            topic: topic.to_owned(),
            ranks,
        }
    }

    #[test]
    fn workers_say_where_their_events_are() {
        let read = |info: Value| EventSource::of_server_info(&info).unwrap();
        let config = r#"{"publisher": "zmq", "topic": "kv-events"}"#;
        let of_sglang = json!({"kv_events_config": config, "dp_size": 4, "port": 30000});
        assert_eq!(read(of_sglang), Some(source(5557, None, "kv-events", 4)));
        let ours = json!({"kv_events_config": {"publisher": "zmq", "endpoint": "tcp://*:6000",
                          "replay_endpoint": "tcp://*:6001"}});
        assert_eq!(read(ours), Some(source(6000, Some(6001), "", 1)));
        let described = json!({"kv_events_config": "{}", "dp_size": 9, "kv_events": {"publisher": "zmq",
            "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "t", "block_size": 16, "dp_size": 2,
            "replay_endpoint_port_base": 5600}});
        assert_eq!(read(described), Some(source(5557, Some(5600), "t", 2)));
        for nothing in [
            json!({}),
            json!([1]),
            json!({"kv_events_config": null}),
            json!({"kv_events_config": "{\"publisher\": \"null\"}"}),
            json!({"kv_events_config": {"enable_kv_cache_events": false, "publisher": "zmq"}}),
        ] {
            assert_eq!(read(nothing), None);
        }
        for wrong in [
            json!({}),
            json!({"endpoint_port_base": 0}),
            json!({"endpoint_port_base": 65535, "dp_size": 2}),
        ] {
            assert!(EventSource::of_server_info(&json!({"kv_events": wrong})).is_err());
        }
        for wrong in ["ipc:///tmp/x", "tcp://*", "tcp://*:0", "tcp://*:70000"] {
            let info = json!({"kv_events_config": {"publisher": "zmq", "endpoint": wrong}});
            assert!(
                EventSource::of_server_info(&info)
                    .unwrap_err()
                    .contains(wrong)
            );
        }
    }

    #[test]
    fn the_option_is_a_word_or_what_the_workers_got() {
        assert_eq!(KvEvents::parse("off").unwrap(), KvEvents::Off);
        assert_eq!(KvEvents::parse("auto").unwrap(), KvEvents::Auto);
        let of_vllm =
            r#"{"enable_kv_cache_events": true, "endpoint": "tcp://*:7000", "dp_size": 2}"#;
        let known = KvEvents::As(source(7000, None, "", 2));
        assert_eq!(KvEvents::parse(of_vllm).unwrap(), known);
        for wrong in ["on", "{}", "{\"publisher\": \"zmq\", \"endpoint\": \"x\"}"] {
            let why = KvEvents::parse(wrong).unwrap_err().to_string();
            assert!(
                why.starts_with("kv_events: ")
                    && why.contains(
                        wrong
                            .split(' ')
                            .next_back()
                            .unwrap_or(wrong)
                            .get(..2)
                            .unwrap_or(wrong)
                    ),
                "{why}"
            );
        }
    }
}
