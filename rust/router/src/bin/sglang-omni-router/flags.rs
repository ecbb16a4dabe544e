//! `--some-flag VALUE...` read as the field `some_flag` of any `Deserialize` type: the type that a field
//! has says how its text is read, so that no option is written down twice.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer, StringDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

pub fn parse<T: DeserializeOwned>(arguments: &[String]) -> Result<T, String> {
    let mut given: Vec<(String, Values)> = Vec::new();
    for argument in arguments {
        match argument.strip_prefix("--") {
            Some(flag) => {
                let (name, value) = match flag.split_once('=') {
                    Some((name, value)) => (name, vec![value.to_owned()]),
                    None => (flag, Vec::new()),
                };
                given.push((name.replace('-', "_"), Values(value)));
            }
            None => match given.last_mut() {
                Some((_, Values(values))) => values.push(argument.clone()),
                None => return Err(format!("{argument:?} is not an option")),
            },
        }
    }
    let map = MapDeserializer::<_, Error>::new(given.into_iter());
    serde_path_to_error::deserialize(map).map_err(|error| match error.path().to_string().as_str() {
        "." => error.inner().to_string(),
        path => format!("--{}: {}", path.replace('_', "-"), error.inner()),
    })
}

/// The flags of a struct, as its `Deserialize` names its fields.
pub fn names<T: DeserializeOwned>() -> Vec<String> {
    let mut names = Names(Vec::new());
    let _ = T::deserialize(&mut names);
    names
        .0
        .iter()
        .map(|name| format!("--{}", name.replace('_', "-")))
        .collect()
}

#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Error(message.to_string())
    }

    fn unknown_field(field: &str, _expected: &'static [&'static str]) -> Self {
        Error(format!("--{}: no such option", field.replace('_', "-")))
    }
}

/// What followed a flag.
struct Values(Vec<String>);

impl Values {
    fn one(self) -> Result<String, Error> {
        let count = self.0.len();
        match <[String; 1]>::try_from(self.0) {
            Ok([value]) => Ok(value),
            Err(_) => Err(Error(format!("takes one value, not {count}"))),
        }
    }
}

impl<'de> IntoDeserializer<'de, Error> for Values {
    type Deserializer = Values;

    fn into_deserializer(self) -> Values {
        self
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty),+ $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let text = self.one()?;
            let number: $type = text
                .parse()
                .map_err(|_| Error::custom(format!("{text:?} is not a number it can take")))?;
            visitor.$visit(number)
        })+
    };
}

impl<'de> Deserializer<'de> for Values {
    type Error = Error;

    numbers! {
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_i64 visit_i64 i64,
        deserialize_f64 visit_f64 f64,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] | ["true"] => visitor.visit_bool(true),
            ["false"] => visitor.visit_bool(false),
            _ => Err(Error("takes true, false or nothing, which is true".into())),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // As the Python launcher reads a limit: -1 is none.
        if self.0 == ["-1"] {
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let values = self.0.into_iter().map(|value| Values(vec![value]));
        visitor.visit_seq(SeqDeserializer::new(values))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let value: StringDeserializer<Error> = self.one()?.into_deserializer();
        value.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.one()?)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u128 f32 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// Takes down the names of the fields that are asked for, and has none of them.
struct Names(Vec<&'static str>);

impl<'de> Deserializer<'de> for &mut Names {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(fields);
        Err(Error::custom("only the names were asked for"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("only a struct has names"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use sglang_omni_router::Config;

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        super::parse(&arguments)
    }

    #[test]
    fn flags_are_fields() {
        let config = parse(&[
            "--worker-urls",
            "http://a:1",
            "http://b:2",
            "--port=7",
            "--policy",
            "random",
            "--header-timeout",
            "0.5",
            "--max-payload-size",
            "12",
            "--log-format",
            "json",
            "--max-concurrent-requests",
            "-1",
            "--access-log",
        ])
        .unwrap();
        assert_eq!(config.worker_urls, ["http://a:1", "http://b:2"]);
        assert_eq!((config.port, config.policy.name()), (7, "random"));
        assert_eq!(config.header_timeout.as_millis(), 500);
        assert_eq!((config.max_body_bytes, config.access_log), (12, true));
        assert_eq!(config.max_concurrent_requests, None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, words) in [
            (
                &["--port", "70000"][..],
                "--port: \"70000\" is not a number",
            ),
            (&["--port"], "--port: takes one value, not 0"),
            (&["--policy", "fastest"], "--policy: \"fastest\" is none of"),
            (&["--worker-url", "x"], "--worker-url: no such option"),
            (&["http://a:1"], "is not an option"),
            (
                &["--log-format", "xml"],
                "--log-format: unknown variant `xml`, expected `text` or `json`",
            ),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn names_are_known() {
        let names = super::names::<Config>();
        assert!(names.contains(&"--worker-urls".to_owned()), "{names:?}");
    }
}
