//! The file that says what each tenant may have.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use hyper::header::HeaderName;
use serde::Deserialize;

use crate::base::class::PriorityClass;
use crate::base::config_error::ConfigError;

/// One tenant's part. Rates are tokens and requests a second; a burst is what may come at once, by default what comes in
/// a second, or one request.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantRule {
    pub weight: f64,
    pub requests_per_second: Option<f64>,
    pub requests_burst: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub tokens_burst: Option<f64>,
    pub max_concurrent: Option<usize>,
    /// The highest class that it may ask for.
    pub max_priority: PriorityClass,
}

impl Default for TenantRule {
    fn default() -> Self {
        TenantRule {
            weight: 1.0,
            requests_per_second: None,
            requests_burst: None,
            tokens_per_second: None,
            tokens_burst: None,
            max_concurrent: None,
            max_priority: PriorityClass::Normal,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantRules {
    /// The header that names a request's tenant if its key does not. Whoever may set it chooses a tenant.
    pub tenant_header: Option<String>,
    /// Seconds after which a request that waits rises by a class.
    pub rise_after: f64,
    /// The rule of tenants that have none of their own.
    pub default: TenantRule,
    pub tenants: HashMap<String, TenantRule>,
}

impl Default for TenantRules {
    fn default() -> Self {
        TenantRules {
            tenant_header: None,
            rise_after: 10.0,
            default: TenantRule::default(),
            tenants: HashMap::new(),
        }
    }
}

impl TenantRules {
    /// Without a file there are no tenants to protect from each other, so that any request may be in any class.
    pub fn without_file() -> TenantRules {
        let mut rules = TenantRules::default();
        rules.default.max_priority = PriorityClass::High;
        rules
    }

    /// Reads the file, which is JSON.
    pub fn read(path: &Path) -> Result<TenantRules, ConfigError> {
        let fail = |why: String| ConfigError(format!("tenants_file: {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        Self::parse(&text).map_err(fail)
    }

    fn parse(text: &str) -> Result<TenantRules, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        let rules: TenantRules = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| format!("{}: {}", error.path(), error.inner()))?;
        json.end().map_err(|error| error.to_string())?;
        let header = rules.tenant_header.as_deref();
        if let Some(header) = header.filter(|header| header.parse::<HeaderName>().is_err()) {
            return Err(format!("tenant_header: {header:?} is not a header's name"));
        }
        if Duration::try_from_secs_f64(rules.rise_after).is_err() || rules.rise_after == 0.0 {
            return Err("rise_after: give seconds, more than 0".to_owned());
        }
        check("default", &rules.default)?;
        for (name, rule) in &rules.tenants {
            check(&format!("tenants.{name}"), rule)?;
        }
        Ok(rules)
    }

    pub fn rule(&self, tenant: &str) -> &TenantRule {
        self.tenants.get(tenant).unwrap_or(&self.default)
    }
}

fn check(place: &str, rule: &TenantRule) -> Result<(), String> {
    let numbers = [
        ("weight", Some(rule.weight)),
        ("requests_per_second", rule.requests_per_second),
        ("requests_burst", rule.requests_burst),
        ("tokens_per_second", rule.tokens_per_second),
        ("tokens_burst", rule.tokens_burst),
    ];
    for (name, value) in numbers {
        if value.is_some_and(|value| !(value > 0.0 && value.is_finite())) {
            return Err(format!("{place}.{name}: must be more than 0"));
        }
    }
    if rule.requests_burst.is_some_and(|burst| burst < 1.0) {
        return Err(format!(
            "{place}.requests_burst: less than 1 admits no request"
        ));
    }
    if rule.max_concurrent == Some(0) {
        return Err(format!(
            "{place}.max_concurrent: 0 would keep every request waiting"
        ));
    }
    for (burst, rate) in [
        ("requests_burst", "requests_per_second"),
        ("tokens_burst", "tokens_per_second"),
    ] {
        let of = |name: &str| {
            numbers
                .iter()
                .find(|number| number.0 == name)
                .and_then(|number| number.1)
        };
        if of(burst).is_some() && of(rate).is_none() {
            return Err(format!(
                "{place}.{burst}: goes with {rate}, which is missing"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_their_rule_and_others_the_default() {
        let rules = TenantRules::parse(
            r#"{"default": {"weight": 2}, "tenants": {"blue": {"max_priority": "high", "max_concurrent": 3}}}"#,
        );
        let rules = rules.unwrap();
        assert_eq!(rules.rule("blue").max_concurrent, Some(3));
        assert_eq!(rules.rule("blue").max_priority, PriorityClass::High);
        assert_eq!(rules.rule("red").weight, 2.0);
        let rules = TenantRules::parse("{}").unwrap();
        assert_eq!(rules.rule("red").max_priority, PriorityClass::Normal);
    }

    #[test]
    fn errors_name_the_place() {
        for (text, words) in [
            (
                r#"{"tenants": {"a": {"weight": 0}}}"#,
                "tenants.a.weight: must be more than 0",
            ),
            (
                r#"{"tenants": {"a": {"weigth": 1}}}"#,
                "unknown field `weigth`",
            ),
            (
                r#"{"default": {"max_concurrent": 0}}"#,
                "default.max_concurrent",
            ),
            (
                r#"{"default": {"max_priority": "urgent"}}"#,
                "unknown variant `urgent`",
            ),
            (
                r#"{"default": {"tokens_burst": 4}}"#,
                "goes with tokens_per_second",
            ),
            (
                r#"{"default": {"requests_per_second": 1, "requests_burst": 0.5}}"#,
                "less than 1",
            ),
            (r#"{"rise_after": -1}"#, "rise_after"),
            (r#"{"tenant_header": "a b"}"#, "tenant_header"),
            ("{} {}", "trailing"),
            ("", "EOF"),
        ] {
            let error = TenantRules::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
