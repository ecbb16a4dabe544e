//! Serves `/metrics` on a port of its own, for scrapers that must not reach the other paths.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::admin::{metrics, worker_metrics};
use crate::base::prometheus;
use crate::proxy::lane::Proxy;
use crate::upstream::pool::Pool;

/// A scrape takes milliseconds; a client that takes longer than this does not scrape.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until the runtime ends. `sees_urls`: whether workers are named by their URLs. `key`: the one that is shown to
/// the fleet's workers, whose metrics are served too.
pub async fn serve(
    proxy: Arc<Proxy>,
    sees_urls: bool,
    key: Option<HeaderValue>,
    listener: io::Result<StdListener>,
) {
    let listener = listener.and_then(TcpListener::from_std);
    let listener = listener.expect("the listener is a non-blocking TCP socket");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: some must be closed first.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        if stream.set_nodelay(true).is_err() {
            continue; // Already closed by the client.
        }
        let (proxy, key) = (proxy.clone(), key.clone());
        let answer = service_fn(move |request| {
            let (proxy, key) = (proxy.clone(), key.clone());
            async move { Ok::<_, Infallible>(answer(&proxy, sees_urls, key, &request).await) }
        });
        let connection = http1::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        // An error is the client's.
        tokio::task::spawn_local(timeout(PATIENCE, connection));
    }
}

async fn answer(
    proxy: &Proxy,
    sees_urls: bool,
    key: Option<HeaderValue>,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    if request.uri().path() == "/metrics" {
        let headers = HeaderMap::from_iter(key.map(|key| (AUTHORIZATION, key)));
        let pool = Pool::new(proxy.trust.clone());
        let theirs = worker_metrics::gather(&pool, &proxy.fleet, &headers, sees_urls).await;
        *response.body_mut() = (metrics::render(proxy, sees_urls) + &theirs).into();
        let content_type = HeaderValue::from_static(prometheus::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    } else {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}
