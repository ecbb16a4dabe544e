//! Answers the router gives itself.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::request::body::Payload;

pub type Reply = Response<Payload>;

/// The body of an error in OpenAI's shape; `code` is the HTTP status.
pub fn error_body(status: StatusCode, message: &str) -> String {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 => "service_unavailable_error",
        _ => "server_error",
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": status.as_u16()}})
        .to_string()
}

pub fn error(status: StatusCode, message: &str) -> Reply {
    let mut reply = text(status, "application/json", error_body(status, message));
    if matches!(
        status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
    ) {
        // Workers are probed every second and requests end all the time: a second later the answer may be
        // another.
        reply
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    reply
}

pub fn json(status: StatusCode, value: &Value) -> Reply {
    text(status, "application/json", value.to_string())
}

pub fn text(status: StatusCode, content_type: &'static str, body: String) -> Reply {
    let mut reply = Response::new(Payload::Local(Some(Bytes::from(body))));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}
