//! Names of headers by which routers, workers and clients understand each other.

use hyper::header::HeaderName;

/// Carries a request's id to the worker, and back to the client.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// OpenAI's name for an id that a client chooses; it counts if there is no other.
pub const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-client-request-id");

/// Names the client that a request is of, to workers: one opaque word for each client key.
pub const OWNER: HeaderName = HeaderName::from_static("x-sglang-omni-owner");

/// Names the worker that served a request, to clients.
pub const WORKER: HeaderName = HeaderName::from_static("x-sglang-omni-worker");

/// Lists routers by their names, separated by commas.
pub const ROUTERS: HeaderName = HeaderName::from_static("x-sglang-omni-routers");
