//! Reads the keys that a configuration gives, in a field or in a file.

use std::fs;
use std::path::Path;

use hyper::header::HeaderValue;

use crate::base::config_error::ConfigError;

/// The keys that a field and its file give, any number of them.
pub fn keys(
    field: &str,
    given: &[String],
    file: Option<&Path>,
) -> Result<Vec<String>, ConfigError> {
    let mut keys = given.to_vec();
    if let Some(path) = file {
        keys.extend(lines(&format!("{field}_file"), path)?);
    }
    for key in &keys {
        bearer(field, key)?;
    }
    Ok(keys)
}

/// The one key that a field or its file gives, with its `Authorization` header.
pub fn one_key(
    field: &str,
    given: Option<&str>,
    file: Option<&Path>,
) -> Result<Option<(String, HeaderValue)>, ConfigError> {
    let in_file = format!("{field}_file");
    match (given, file) {
        (Some(_), Some(_)) => Err(ConfigError(format!(
            "{field}: {in_file} is given as well; give one of them"
        ))),
        (Some(key), None) => Ok(Some((key.to_owned(), bearer(field, key)?))),
        (None, Some(path)) => match &lines(&in_file, path)?[..] {
            [key] => Ok(Some((key.clone(), bearer(&in_file, key)?))),
            keys => Err(ConfigError(format!(
                "{in_file}: {} holds {} keys; it must hold one",
                path.display(),
                keys.len()
            ))),
        },
        (None, None) => Ok(None),
    }
}

/// The `Authorization` header for a key. The error for an impossible key does not contain it.
pub fn bearer(field: &str, key: &str) -> Result<HeaderValue, ConfigError> {
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

    #[test]
    fn wrong_keys_are_errors_that_do_not_show_them() {
        let text = keys("api_key", &["two words".to_owned()], None);
        let text = text.unwrap_err().to_string();
        assert!(
            text.contains("api_key") && !text.contains("two words"),
            "{text}"
        );
        let one = |given| one_key("worker_api_key", given, Some(Path::new("/none")));
        let text = one(None).unwrap_err().to_string();
        assert!(
            text.contains("worker_api_key_file: cannot read /none"),
            "{text}"
        );
        let text = one(Some("a")).unwrap_err().to_string();
        assert!(text.contains("give one of them"), "{text}");
    }
}
