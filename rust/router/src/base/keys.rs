//! Keys as a configuration gives them, in a field or in a file.

use std::fs;
use std::path::Path;

use hyper::header::HeaderValue;

use crate::base::config_error::ConfigError;

/// The one key that a field or its file gives, and how it is shown.
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
                "{in_file}: {} holds {} keys; it is to be one",
                path.display(),
                keys.len()
            ))),
        },
        (None, None) => Ok(None),
    }
}

/// The `Authorization` that shows a key; an error that does not show it if it can be none.
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
pub fn lines(field: &str, path: &Path) -> Result<Vec<String>, ConfigError> {
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
