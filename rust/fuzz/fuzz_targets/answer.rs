//! Any bytes of a worker, the first of which chooses the method that was asked: the client reads the same status and the
//! same body, and no header that was the worker's connection's alone.

#![no_main]

use http_body_util::{Empty, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response, StatusCode, Version};
use libfuzzer_sys::fuzz_target;
use sglang_omni_fuzz::{answer, answered, check_end_to_end, run};
use sglang_omni_router::fuzzing::forwarding;

fn request(method: &Method) -> Request<Empty<Bytes>> {
    let request = Request::builder()
        .method(method)
        .uri("/")
        .header("host", "worker");
    request.body(Empty::new()).expect("a request")
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let method = match kind & 1 {
        0 => Method::GET,
        _ => Method::HEAD,
    };
    run(async {
        let Some((mut parts, body)) = answer(bytes, request(&method)).await else {
            return;
        };
        if parts.status == StatusCode::SWITCHING_PROTOCOLS
            || !forwarding::has_known_coding(&parts.headers)
        {
            return;
        }
        let before = std::mem::take(&mut parts.headers);
        parts.headers = forwarding::response_headers(before.clone());
        check_end_to_end(&before, &parts.headers);
        parts.version = Version::HTTP_11;
        let (status, body) = (parts.status, body.bytes);
        let passed_on = Response::from_parts(parts, Full::new(body.clone()));
        let (read, at_client) = answered(request(&method), passed_on)
            .await
            .expect("an answer that a client can read");
        assert_eq!((read.status, at_client.bytes), (status, body));
    });
});
