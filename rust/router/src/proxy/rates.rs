//! The rates of tenants, as token buckets.

use std::time::{Duration, Instant};

use crate::base::tenants::TenantRule;
use crate::proxy::no_permit::{NoPermit, Quota};

/// A rate: what comes in a second, and what may be there at most.
#[derive(Clone, Copy)]
struct Rate {
    unit: &'static str,
    per_second: f64,
    burst: f64,
}

fn rates(rule: &TenantRule) -> [Option<Rate>; 2] {
    let rate = |unit, per_second: Option<f64>, burst: Option<f64>| {
        let per_second = per_second?;
        let burst = burst.unwrap_or(per_second.max(1.0));
        Some(Rate {
            unit,
            per_second,
            burst,
        })
    };
    [
        rate("requests", rule.requests_per_second, rule.requests_burst),
        rate("tokens", rule.tokens_per_second, rule.tokens_burst),
    ]
}

/// What is left of a tenant's two rates.
pub struct Buckets {
    /// None while it is full.
    left: [Option<f64>; 2],
    at: Instant,
}

impl Buckets {
    pub fn new(now: Instant) -> Self {
        Buckets {
            left: [None; 2],
            at: now,
        }
    }

    fn refill(&mut self, rates: &[Option<Rate>; 2], now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        for (left, rate) in self.left.iter_mut().zip(rates) {
            *left = left.zip(*rate).and_then(|(left, rate)| {
                let left = left + seconds * rate.per_second;
                (left < rate.burst).then_some(left)
            });
        }
        self.at = now;
    }

    /// True if nothing is missing.
    pub fn is_full(&mut self, rule: &TenantRule, now: Instant) -> bool {
        self.refill(&rates(rule), now);
        self.left == [None; 2]
    }

    /// Takes one request of so many tokens, if both rates allow it. One that is larger than a burst is allowed when the
    /// bucket is full, and the tenant then waits until that is paid off.
    pub fn take(&mut self, rule: &TenantRule, tokens: f64, now: Instant) -> Result<(), NoPermit> {
        let rates = rates(rule);
        self.refill(&rates, now);
        let costs = [1.0, tokens];
        let mut wait: Option<(f64, Rate)> = None;
        for ((rate, left), cost) in rates.iter().zip(self.left).zip(costs) {
            let (Some(rate), Some(left)) = (rate, left) else {
                continue;
            };
            let seconds = (cost.min(rate.burst) - left) / rate.per_second;
            if seconds > wait.map_or(0.0, |(longest, _)| longest) {
                wait = Some((seconds, *rate));
            }
        }
        if let Some((seconds, rate)) = wait {
            return Err(self.refusal(&rates, seconds, rate));
        }
        for ((left, rate), cost) in self.left.iter_mut().zip(rates).zip(costs) {
            *left = rate.map(|rate| left.unwrap_or(rate.burst) - cost);
        }
        Ok(())
    }

    fn refusal(&self, rates: &[Option<Rate>; 2], seconds: f64, over: Rate) -> NoPermit {
        let Rate {
            unit,
            per_second,
            burst,
        } = over;
        let quotas = rates.iter().zip(self.left).filter_map(|(rate, left)| {
            let rate = (*rate)?;
            let left = left.unwrap_or(rate.burst);
            let missing = (rate.burst - left) / rate.per_second;
            Some(Quota {
                unit: rate.unit,
                burst: rate.burst,
                left: left.max(0.0),
                reset: Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX),
            })
        });
        NoPermit {
            why: format!(
                "this tenant may send {per_second} {unit} a second, and {burst} at once: wait {seconds:.1} s, or send \
                 less"
            ),
            retry_after: (seconds.ceil() as u64).max(1),
            quotas: quotas.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(requests: Option<f64>, tokens: Option<f64>) -> TenantRule {
        TenantRule {
            requests_per_second: requests,
            requests_burst: requests.map(|_| 2.0),
            tokens_per_second: tokens,
            tokens_burst: tokens.map(|_| 100.0),
            ..TenantRule::default()
        }
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let (rule, start) = (rule(Some(0.5), None), Instant::now());
        let mut buckets = Buckets::new(start);
        assert!(buckets.take(&rule, 1.0, start).is_ok());
        assert!(buckets.take(&rule, 1.0, start).is_ok());
        let refused = buckets.take(&rule, 1.0, start).unwrap_err();
        assert_eq!(refused.retry_after, 2);
        let quota = &refused.quotas[..];
        assert_eq!(
            (quota[0].unit, quota[0].burst, quota[0].left),
            ("requests", 2.0, 0.0)
        );
        assert_eq!((quota.len(), quota[0].reset), (1, Duration::from_secs(4)));
        // It is true: a moment before it is refused still, and then it is not.
        let at = |seconds| start + Duration::from_secs_f64(seconds);
        assert!(buckets.take(&rule, 1.0, at(1.9)).is_err());
        assert!(buckets.take(&rule, 1.0, at(2.0)).is_ok());
    }

    #[test]
    fn what_is_larger_than_a_burst_is_paid_off_later() {
        let (rule, start) = (rule(None, Some(10.0)), Instant::now());
        let mut buckets = Buckets::new(start);
        assert!(buckets.take(&rule, 250.0, start).is_ok());
        let refused = buckets.take(&rule, 50.0, start).unwrap_err();
        assert_eq!(refused.retry_after, 20);
        assert!(
            buckets
                .take(&rule, 50.0, start + Duration::from_secs(20))
                .is_ok()
        );
        assert!(!buckets.is_full(&rule, start + Duration::from_secs(29)));
        assert!(buckets.is_full(&rule, start + Duration::from_secs(30)));
    }

    #[test]
    fn no_rate_refuses_nothing() {
        let (rule, start) = (rule(None, None), Instant::now());
        let mut buckets = Buckets::new(start);
        assert!((0..1000).all(|_| buckets.take(&rule, 1e9, start).is_ok()));
    }
}
