//! The router's own answers, and the table of its errors.

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use crate::base::page::Page;
use crate::proxy::no_permit::{NoPermit, Quota};
use crate::proxy::payload::Payload;
use crate::upstream::request_body::discard;

pub type Reply = Response<Payload>;

macro_rules! reasons {
    ($($reason:ident $code:literal $status:ident),+ $(,)?) => {
        /// Why the router itself refuses a request. Each has its `code`, by which clients tell one from
        /// another, and its status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($reason),+ }

        impl Reason {
            pub fn code(self) -> &'static str {
                match self { $(Reason::$reason => $code),+ }
            }

            pub fn status(self) -> StatusCode {
                match self { $(Reason::$reason => StatusCode::$status),+ }
            }

            #[cfg(test)]
            const ALL: &[Reason] = &[$(Reason::$reason),+];
        }
    };
}

// docs/router.md lists them.
reasons! {
    InvalidHttp "invalid_http" BAD_REQUEST,
    InvalidBody "invalid_body" BAD_REQUEST,
    InvalidParameter "invalid_parameter" BAD_REQUEST,
    InvalidApiKey "invalid_api_key" UNAUTHORIZED,
    AdminKeyNeeded "admin_key_needed" FORBIDDEN,
    CrossSiteRequest "cross_site_request" FORBIDDEN,
    UnknownHost "unknown_host" FORBIDDEN,
    ModelNotFound "model_not_found" NOT_FOUND,
    WorkerNotFound "worker_not_found" NOT_FOUND,
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED,
    RequestTimeout "request_timeout" REQUEST_TIMEOUT,
    RequestTooLarge "request_too_large" PAYLOAD_TOO_LARGE,
    UriTooLong "uri_too_long" URI_TOO_LONG,
    UnsupportedMediaType "unsupported_media_type" UNSUPPORTED_MEDIA_TYPE,
    RateLimitExceeded "rate_limit_exceeded" TOO_MANY_REQUESTS,
    HeadersTooLarge "headers_too_large" REQUEST_HEADER_FIELDS_TOO_LARGE,
    UnsupportedTransferEncoding "unsupported_transfer_encoding" NOT_IMPLEMENTED,
    WorkerFailed "worker_failed" BAD_GATEWAY,
    WorkersLost "workers_lost" BAD_GATEWAY,
    InvalidWorkerAnswer "invalid_worker_answer" BAD_GATEWAY,
    NoWorkers "no_workers" SERVICE_UNAVAILABLE,
    WorkersDown "workers_down" SERVICE_UNAVAILABLE,
    WorkersDraining "workers_draining" SERVICE_UNAVAILABLE,
    RouterOutOfResources "router_out_of_resources" SERVICE_UNAVAILABLE,
    WorkerTimeout "worker_timeout" GATEWAY_TIMEOUT,
    RoutingLoop "routing_loop" LOOP_DETECTED,
}

/// Says to the log why a request was refused.
#[derive(Clone)]
pub struct Why(pub String);

/// OpenAI's `type` for an error with this status.
fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

/// An error in OpenAI's form; `code` is for programs to test.
pub fn error_object(status: StatusCode, code: &str, message: &str, param: Option<&str>) -> Value {
    json!({"message": message, "type": kind(status), "param": param, "code": code})
}

/// The body of an error.
pub fn error_body(reason: Reason, message: &str) -> String {
    json!({"error": error_object(reason.status(), reason.code(), message, None)}).to_string()
}

pub fn error(reason: Reason, message: &str) -> Reply {
    refused(reason.status(), error_body(reason, message), message)
}

/// An error of which the log is told more than the client.
pub fn error_logged(reason: Reason, message: &str, logged: String) -> Reply {
    let mut reply = error(reason, message);
    reply.extensions_mut().insert(Why(logged));
    reply
}

/// An error with a status that workers gave.
pub fn error_of_workers(status: StatusCode, message: &str, logged: String) -> Reply {
    let error = error_object(status, Reason::WorkerFailed.code(), message, None);
    refused(status, json!({"error": error}).to_string(), &logged)
}

fn refused(status: StatusCode, body: String, message: &str) -> Reply {
    let mut reply = text(status, "application/json", body);
    if matches!(
        status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
    ) {
        // Workers are probed every second, so a second later the answer may differ. The limit on requests in
        // flight knows better: see `Refusal`.
        reply
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    reply.extensions_mut().insert(Why(message.to_owned()));
    reply
}

/// An error that ends the connection: what follows on it may not be a request.
pub fn last_error(reason: Reason, message: &str) -> Reply {
    let mut reply = error(reason, message);
    close(&mut reply);
    reply
}

fn close(reply: &mut Reply) {
    let close = HeaderValue::from_static("close");
    reply.headers_mut().insert(CONNECTION, close);
}

/// Why a request goes no further.
pub struct Refusal {
    reason: Reason,
    message: String,
    /// Seconds after which the client may come back; None for what every error of this status says.
    retry_after: Option<u64>,
    quotas: Vec<Quota>,
}

impl Refusal {
    pub fn new(reason: Reason, message: impl Into<String>) -> Refusal {
        Refusal {
            reason,
            message: message.into(),
            retry_after: None,
            quotas: Vec::new(),
        }
    }

    /// The answer. A body that is still coming is read for a while, so that the client can read the answer.
    pub fn reply(self, request: Request<Incoming>) -> Reply {
        let body = request.into_body();
        if !body.is_end_stream() {
            tokio::task::spawn_local(discard(body));
        }
        self.into_reply()
    }

    /// The answer to a request whose body is read elsewhere.
    pub fn into_reply(self) -> Reply {
        let mut reply = error(self.reason, &self.message);
        match self.reason {
            Reason::InvalidApiKey => {
                let challenge = HeaderValue::from_static("Bearer");
                reply.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            }
            // The rest of the body may still come.
            Reason::RequestTimeout => close(&mut reply),
            _ => {}
        }
        if let Some(seconds) = self.retry_after {
            reply.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        for quota in &self.quotas {
            note_quota(quota, reply.headers_mut());
        }
        reply
    }
}

impl From<NoPermit> for Refusal {
    fn from(refused: NoPermit) -> Refusal {
        Refusal {
            reason: Reason::RateLimitExceeded,
            message: refused.why,
            retry_after: Some(refused.retry_after),
            quotas: refused.quotas,
        }
    }
}

/// OpenAI's headers about a rate.
fn note_quota(quota: &Quota, headers: &mut HeaderMap) {
    let Quota {
        unit,
        burst,
        left,
        reset,
    } = quota;
    for (what, value) in [
        ("limit", burst.floor().to_string()),
        ("remaining", left.floor().to_string()),
        ("reset", format!("{:.3}s", reset.as_secs_f64())),
    ] {
        let name = HeaderName::try_from(format!("x-ratelimit-{what}-{unit}"));
        let value = HeaderValue::try_from(value);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.insert(name, value);
        }
    }
}

/// 404 for a model that no worker has.
pub fn unknown_model(model: &str) -> Reply {
    let message =
        format!("no worker serves the model {model:?}; /v1/models lists those that are served");
    let reason = Reason::ModelNotFound;
    let error = error_object(reason.status(), reason.code(), &message, Some("model"));
    json(reason.status(), &json!({"error": error}))
}

pub fn json(status: StatusCode, value: &Value) -> Reply {
    text(status, "application/json", value.to_string())
}

pub fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    with_payload(status, content_type, Payload::Local(Some(body.into())))
}

pub fn page(content_type: &'static str, page: Page) -> Reply {
    with_payload(
        StatusCode::OK,
        content_type,
        Payload::Page(page.into_body()),
    )
}

fn with_payload(status: StatusCode, content_type: &'static str, payload: Payload) -> Reply {
    let mut reply = Response::new(payload);
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_without_a_permit_is_asked_to_come_back_when_there_will_be_room() {
        let refused = NoPermit {
            why: "full".to_owned(),
            retry_after: 17,
            quotas: vec![Quota {
                unit: "tokens",
                burst: 100.0,
                left: 2.5,
                reset: Duration::from_millis(9750),
            }],
        };
        let reply = Refusal::from(refused).into_reply();
        assert_eq!(reply.status(), StatusCode::TOO_MANY_REQUESTS);
        let values: Vec<_> = reply.headers().get_all(RETRY_AFTER).iter().collect();
        assert_eq!(values, ["17"]);
        for (what, value) in [("limit", "100"), ("remaining", "2"), ("reset", "9.750s")] {
            assert_eq!(reply.headers()[format!("x-ratelimit-{what}-tokens")], value);
        }
    }

    #[test]
    fn types_are_openais() {
        for (reason, kind) in [
            (Reason::InvalidApiKey, "authentication_error"),
            (Reason::ModelNotFound, "invalid_request_error"),
            (Reason::RateLimitExceeded, "rate_limit_error"),
            (Reason::WorkersDown, "server_error"),
            (Reason::WorkerTimeout, "server_error"),
        ] {
            let body: Value = serde_json::from_str(&error_body(reason, "why")).unwrap();
            let expected =
                json!({"message": "why", "type": kind, "param": null, "code": reason.code()});
            assert_eq!(body["error"], expected);
        }
    }

    #[test]
    fn every_code_is_documented_with_its_status() {
        let docs = include_str!("../../../../docs/router.md");
        for reason in Reason::ALL {
            let row = format!("| {} | `{}` |", reason.status().as_u16(), reason.code());
            assert!(docs.contains(&row), "docs/router.md lacks {row}");
        }
    }
}
