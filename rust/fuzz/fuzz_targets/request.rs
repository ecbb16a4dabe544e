//! Any bytes of a client: of each request that is passed on a worker reads one, with the same method, path and body, and
//! with no header that was the client's connection's alone.

#![no_main]

use hyper::header::{EXPECT, HOST, HeaderValue};
use hyper::{Method, Request, Version};
use libfuzzer_sys::fuzz_target;
use sglang_omni_fuzz::{Received, check_end_to_end, requests, run, sent};
use sglang_omni_router::fuzzing::{RequestBody, forwarding};

/// The request as the front and `proxy::http` pass it on; None if they do not.
fn passed_on((parts, body): Received) -> Option<Request<RequestBody>> {
    let body = RequestBody::new(body.bytes, body.trailers, None);
    let mut request = Request::from_parts(parts, body);
    forwarding::strike_named(request.headers_mut());
    let is_passed_on = !matches!(*request.method(), Method::CONNECT | Method::TRACE)
        && forwarding::has_one_host(request.version(), request.headers())
        && forwarding::has_known_coding(request.headers())
        && !forwarding::wants_upgrade(request.headers());
    if !is_passed_on {
        return None;
    }
    if request.uri().authority().is_some() {
        forwarding::to_origin_form(&mut request);
    }
    let before = request.headers().clone();
    let mut headers = forwarding::request_headers(before.clone());
    check_end_to_end(&before, &headers);
    assert!(!headers.contains_key(EXPECT));
    forwarding::note_hop(request.version(), &mut headers);
    if !headers.contains_key(HOST) {
        headers.insert(HOST, HeaderValue::from_static("worker"));
    }
    *request.headers_mut() = headers;
    *request.version_mut() = Version::HTTP_11;
    Some(request)
}

fuzz_target!(|bytes: &[u8]| {
    run(async {
        for received in requests(bytes).await {
            let body = received.1.bytes.clone();
            let Some(request) = passed_on(received) else {
                continue;
            };
            let (method, uri) = (request.method().clone(), request.uri().clone());
            let at_worker = sent(request).await;
            let [(parts, read)] = &at_worker[..] else {
                panic!("{} requests at the worker: {at_worker:?}", at_worker.len());
            };
            assert_eq!(parts.method, method);
            assert_eq!(parts.uri.path_and_query(), uri.path_and_query());
            assert_eq!(read.bytes, body);
        }
    });
});
