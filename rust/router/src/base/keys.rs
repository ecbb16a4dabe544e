//! Reads the keys that a configuration gives, in a field or in a file.

use std::fs;
use std::path::Path;

use hyper::header::HeaderValue;

use crate::base::config_error::ConfigError;

/// A client's key, and the tenant that it belongs to. A tenant may have several.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantKey {
    pub key: String,
    pub tenant: Option<String>,
}

/// The keys that a field and its file give, any number of them. A line of the file is `KEY` or `TENANT KEY`.
pub fn keys(
    field: &str,
    given: &[String],
    file: Option<&Path>,
) -> Result<Vec<TenantKey>, ConfigError> {
    let without_tenant = |key: &String| TenantKey {
        key: key.clone(),
        tenant: None,
    };
    let mut keys: Vec<TenantKey> = given.iter().map(without_tenant).collect();
    if let Some(path) = file {
        let lines = lines(&format!("{field}_file"), path)?;
        keys.extend(lines.iter().map(|line| of_tenant(line)));
    }
    for TenantKey { key, .. } in &keys {
        bearer(field, key)?;
    }
    Ok(keys)
}

fn of_tenant(line: &str) -> TenantKey {
    match line.rsplit_once(' ') {
        Some((tenant, key)) => TenantKey {
            key: key.to_owned(),
            tenant: Some(tenant.trim().to_owned()),
        },
        None => TenantKey {
            key: line.to_owned(),
            tenant: None,
        },
    }
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
    fn a_line_may_name_the_keys_tenant() {
        let found = |line| {
            let TenantKey { key, tenant } = of_tenant(line);
            (tenant, key)
        };
        assert_eq!(found("k"), (None, "k".to_owned()));
        assert_eq!(
            found("team a  k"),
            (Some("team a".to_owned()), "k".to_owned())
        );
    }

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
