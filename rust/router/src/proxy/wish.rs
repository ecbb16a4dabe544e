//! What a request says of its turn, in headers.

use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::HeaderValue;

use crate::base::class::PriorityClass;
use crate::base::headers::{PRIORITY, TURN_TIMEOUT};
use crate::base::tenants::{TenantRule, TenantRules};
use crate::proxy::fair_queue::{Share, TenantName};

/// The tenant of requests that name none.
const NOBODY: &str = "";

pub struct Wish {
    pub tenant: TenantName,
    pub class: PriorityClass,
    /// How long it may wait for its turn, if it says so.
    pub timeout: Option<Duration>,
    pub rules: Arc<TenantRules>,
}

impl Wish {
    /// `tenant` is the one that the request's key belongs to. An error says which header is wrong.
    pub fn read(
        rules: Arc<TenantRules>,
        tenant: Option<TenantName>,
        headers: &HeaderMap,
    ) -> Result<Wish, String> {
        let named = || headers.get(rules.tenant_header.as_deref()?)?.to_str().ok();
        let tenant = tenant.unwrap_or_else(|| named().unwrap_or(NOBODY).into());
        let class = headers.get(PRIORITY).map(class).transpose()?;
        let class = class.unwrap_or_default();
        let timeout = headers.get(TURN_TIMEOUT).map(milliseconds).transpose()?;
        Ok(Wish {
            class: class.max(rules.rule(&tenant).max_priority),
            tenant,
            timeout,
            rules,
        })
    }

    pub fn rule(&self) -> &TenantRule {
        self.rules.rule(&self.tenant)
    }

    pub fn share(&self) -> Share {
        share(self.rule())
    }
}

pub fn share(rule: &TenantRule) -> Share {
    Share {
        weight: rule.weight,
        most_running: rule.max_concurrent.unwrap_or(usize::MAX),
    }
}

fn class(value: &HeaderValue) -> Result<PriorityClass, String> {
    let class = value.to_str().ok().and_then(PriorityClass::parse);
    class.ok_or_else(|| format!("x-priority: {value:?} is not high, normal or low"))
}

fn milliseconds(value: &HeaderValue) -> Result<Duration, String> {
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let wrong = || format!("x-request-timeout-ms: {value:?} is not a number of milliseconds");
    number.map(Duration::from_millis).ok_or_else(wrong)
}
