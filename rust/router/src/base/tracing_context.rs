//! Distributed tracing: the context that W3C's `traceparent` carries from hop to hop, and the span of one request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc::Sender;

use crate::base::config_error::ConfigError;

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

const SAMPLED: u8 = 1;

/// Decides which requests are traced, and takes their spans.
pub struct Tracer {
    pub sampler: Sampler,
    /// A span that finds no room is lost: tracing never makes a request wait.
    pub spans: Sender<Span>,
}

/// Which requests are traced, as `OTEL_TRACES_SAMPLER` and its `_ARG` say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Whether a caller's decision counts before the ratio.
    follows_parent: bool,
    /// The share of traces that are recorded.
    ratio: f64,
}

/// The place of a request in its trace.
#[derive(Clone, Debug)]
pub struct Context {
    pub trace: u128,
    /// This router's span.
    pub span: u64,
    /// The caller's span.
    pub parent: Option<u64>,
    /// The caller's `tracestate`, which is passed on as it is.
    pub state: Option<String>,
}

/// One request from its head to the end of its answer.
#[derive(Debug)]
pub struct Span {
    pub context: Context,
    pub began: SystemTime,
    pub took: Duration,
    /// Until the first bytes of a worker's answer.
    pub first_byte: Option<Duration>,
    pub method: String,
    pub path: String,
    pub route: &'static str,
    pub request_id: String,
    pub worker: Option<String>,
    pub attempts: u32,
    pub status: u16,
    /// How the answer ended.
    pub end: &'static str,
}

impl Tracer {
    /// Puts the router's span into a request's headers. None if the request is not to be traced: the worker then sees
    /// the caller's own context, or learns that the trace is not recorded.
    pub fn enter(&self, headers: &mut HeaderMap) -> Option<Box<Context>> {
        let given = headers
            .get(TRACEPARENT)
            .and_then(|value| parse(value.as_bytes()));
        let trace = given.map_or_else(|| fastrand::u128(1..), |(trace, _, _)| trace);
        let is_sampled = self
            .sampler
            .samples(trace, given.map(|(_, _, flags)| flags));
        if !is_sampled && given.is_some() {
            return None;
        }
        let span = fastrand::u64(1..);
        let flags = if is_sampled { SAMPLED } else { 0 };
        let value = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
        let value = HeaderValue::try_from(value).expect("hexadecimal digits may stand in a header");
        headers.insert(TRACEPARENT, value);
        if given.is_none() {
            // Without a context of its own it belongs to no trace.
            headers.remove(TRACESTATE);
        }
        is_sampled.then(|| {
            let state = headers.get(TRACESTATE);
            let state = state
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned);
            let parent = given.map(|(_, parent, _)| parent);
            Box::new(Context {
                trace,
                span,
                parent,
                state,
            })
        })
    }
}

impl Sampler {
    /// Reads the names and numbers of OpenTelemetry's environment variables; by default all is traced that a caller
    /// does not exclude.
    pub fn read(name: Option<&str>, argument: Option<&str>) -> Result<Sampler, ConfigError> {
        let name = name.unwrap_or("parentbased_always_on");
        let (follows_parent, kind) = match name.strip_prefix("parentbased_") {
            Some(kind) => (true, kind),
            None => (false, name),
        };
        let ratio = match kind {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => argument
                .map_or(Ok(1.0), str::parse)
                .ok()
                .filter(|ratio| (0.0..=1.0).contains(ratio))
                .ok_or_else(|| {
                    ConfigError("OTEL_TRACES_SAMPLER_ARG: must be a share from 0 to 1".to_owned())
                })?,
            _ => {
                return Err(ConfigError(format!(
                    "OTEL_TRACES_SAMPLER: {name:?} is none of always_on, always_off and traceidratio, alone or \
                     after parentbased_"
                )));
            }
        };
        Ok(Sampler {
            follows_parent,
            ratio,
        })
    }

    /// `flags`: those of the caller's context, if it sent one.
    fn samples(self, trace: u128, flags: Option<u8>) -> bool {
        match flags {
            Some(flags) if self.follows_parent => flags & SAMPLED != 0,
            // The same bits as OpenTelemetry's SDKs take, so that all hops decide alike.
            _ => (trace as u64) as f64 / 2f64.powi(64) < self.ratio,
        }
    }
}

/// The trace, the parent's span and the flags of a `traceparent`; None if it is not one.
fn parse(value: &[u8]) -> Option<(u128, u64, u8)> {
    let text = std::str::from_utf8(value).ok()?;
    let mut fields = text.split('-');
    let [version, trace, span, flags] = [(); 4].map(|()| fields.next().unwrap_or_default());
    let is_hex = |field: &str, length: usize| {
        field.len() == length
            && field
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    // Later versions may have more fields.
    let is_whole = is_hex(version, 2)
        && version != "ff"
        && (version != "00" || fields.next().is_none())
        && is_hex(trace, 32)
        && is_hex(span, 16)
        && is_hex(flags, 2);
    let trace = u128::from_str_radix(trace, 16).ok().filter(|_| is_whole)?;
    let span = u64::from_str_radix(span, 16).ok()?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    (trace != 0 && span != 0).then_some((trace, span, flags))
}

/// Nanoseconds since 1970.
pub fn nanos(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn enter(
        sampler: &str,
        ratio: &str,
        given: &[(HeaderName, &str)],
    ) -> (Option<Box<Context>>, HeaderMap) {
        let tracer = Tracer {
            sampler: Sampler::read(Some(sampler), Some(ratio)).unwrap(),
            spans: tokio::sync::mpsc::channel(1).0,
        };
        let pairs = given
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()));
        let mut headers = HeaderMap::from_iter(pairs);
        (tracer.enter(&mut headers), headers)
    }

    #[test]
    fn a_callers_trace_goes_on() {
        let given = [(TRACEPARENT, PARENT), (TRACESTATE, "a=1")];
        let (context, headers) = enter("parentbased_always_on", "", &given);
        let context = context.unwrap();
        assert_eq!(context.trace, 0x0af7651916cd43dd8448eb211c80319c);
        assert_eq!(context.parent, Some(0xb7ad6b7169203331));
        assert_eq!(context.state.as_deref(), Some("a=1"));
        let sent = headers[TRACEPARENT].to_str().unwrap();
        assert_eq!(
            sent,
            format!(
                "00-0af7651916cd43dd8448eb211c80319c-{:016x}-01",
                context.span
            )
        );
        assert_eq!(headers[TRACESTATE], "a=1");
    }

    #[test]
    fn what_is_no_context_begins_a_trace() {
        for wrong in [
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "",
        ] {
            let given = [(TRACEPARENT, wrong), (TRACESTATE, "a=1")];
            let (context, headers) = enter("parentbased_always_on", "", &given);
            let context = context.unwrap();
            assert!(
                context.parent.is_none() && context.state.is_none(),
                "{wrong}"
            );
            assert!(
                parse(headers[TRACEPARENT].as_bytes()).is_some()
                    && !headers.contains_key(TRACESTATE)
            );
        }
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes";
        assert!(parse(later.as_bytes()).is_some());
    }

    #[test]
    fn what_is_not_recorded_says_so_to_the_worker() {
        let unsampled = PARENT.replace("-01", "-00");
        let (context, headers) = enter("parentbased_always_on", "", &[(TRACEPARENT, &unsampled)]);
        assert!(context.is_none() && headers[TRACEPARENT] == *unsampled);
        let (context, headers) = enter("parentbased_always_off", "", &[]);
        assert!(context.is_none() && headers[TRACEPARENT].to_str().unwrap().ends_with("-00"));
        assert!(
            enter("always_off", "", &[(TRACEPARENT, PARENT)])
                .0
                .is_none()
        );
        assert!(
            enter("always_on", "", &[(TRACEPARENT, &unsampled)])
                .0
                .is_some()
        );
    }

    #[test]
    fn a_share_is_recorded() {
        let count = (0..1000)
            .filter(|_| enter("traceidratio", "0.5", &[]).0.is_some())
            .count();
        assert!((350..650).contains(&count), "{count}");
        assert!(Sampler::read(Some("traceidratio"), Some("2")).is_err());
        assert!(Sampler::read(Some("jaeger_remote"), None).is_err());
    }
}
