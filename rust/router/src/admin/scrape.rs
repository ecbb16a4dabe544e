//! Serves `/metrics` on a port of its own, for scrapers that must not reach the other paths.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::admin::pages::{MetricsPages, Wanted};
use crate::base::page::{Page, PageBody};
use crate::base::prometheus;

/// A scrape takes milliseconds; a client that takes longer than this does not scrape.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves the page that is wanted there, until the runtime ends.
pub async fn serve(pages: MetricsPages, wanted: Wanted, listener: io::Result<StdListener>) {
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
        let (pages, wanted) = (pages.clone(), wanted.clone());
        let answer = service_fn(move |request| {
            let (pages, wanted) = (pages.clone(), wanted.clone());
            async move { Ok::<_, Infallible>(answer(&pages, wanted, &request).await) }
        });
        let connection = http1::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        // An error is the client's.
        tokio::task::spawn_local(timeout(PATIENCE, connection));
    }
}

async fn answer(
    pages: &MetricsPages,
    wanted: Wanted,
    request: &Request<Incoming>,
) -> Response<PageBody> {
    let mut response = Response::new(Page::default().into_body());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if let Some(page) = pages.get(wanted).await {
        *response.body_mut() = page.into_body();
        let content_type = HeaderValue::from_static(prometheus::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    } else {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}
