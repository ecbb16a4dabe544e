//! Answers the router gives itself.

use bytes::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
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

/// An error after which the connection ends: what follows on it cannot be trusted to be a request.
pub fn last_error(status: StatusCode, message: &str) -> Reply {
    let mut reply = error(status, message);
    reply
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

/// 404 for a model that no worker has.
pub fn unknown_model(model: &str) -> Reply {
    let message =
        format!("no worker serves the model {model:?}; /v1/models lists those that are served");
    let error =
        json!({"message": message, "type": "model_not_found", "param": "model", "code": 404});
    json(StatusCode::NOT_FOUND, &json!({"error": error}))
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
