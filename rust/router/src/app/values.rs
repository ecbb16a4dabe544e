//! Reads and writes the values of options whose types do not define that themselves.

use std::str::FromStr;

/// Durations as numbers of seconds.
pub mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    fn from(value: f64) -> Result<Duration, String> {
        Duration::try_from_secs_f64(value)
            .map_err(|_| format!("{value} is not a number of seconds, 0 or more"))
    }

    pub fn parse(text: &str) -> Result<Duration, String> {
        from(text.parse().unwrap_or(f64::NAN))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        from(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_secs_f64())
    }
}

/// A policy by its name.
pub mod policy_name {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;
    use sglang_omni_policy::PolicyKind;

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyKind, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(D::Error::custom)
    }

    pub fn serialize<S: Serializer>(kind: &PolicyKind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.name())
    }
}

/// A number, or -1 for none.
pub fn limit<T: FromStr>(text: &str) -> Result<Option<T>, T::Err> {
    match text {
        "-1" => Ok(None),
        number => number.parse().map(Some),
    }
}
