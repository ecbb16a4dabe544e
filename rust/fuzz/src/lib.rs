//! HTTP over memory, as the router speaks it with clients and with workers.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::Cursor;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, client, http, server};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex, join, sink};

/// More than any input.
const BUFFER: usize = 1 << 20;

/// A body and what follows its chunks.
#[derive(Debug)]
pub struct WholeBody {
    pub bytes: Bytes,
    pub trailers: Option<HeaderMap>,
}

pub type Received = (http::request::Parts, WholeBody);
pub type WholeAnswer = (http::response::Parts, WholeBody);

async fn read_whole(body: Incoming) -> hyper::Result<WholeBody> {
    let read = body.collect().await?;
    Ok(WholeBody {
        trailers: read.trailers().cloned(),
        bytes: read.to_bytes(),
    })
}

/// Runs one input to its end.
pub fn run<T>(input: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime without threads or sockets")
        .block_on(input)
}

/// The requests that a server reads whole from a connection, each of which gets `answer`.
async fn serve<B>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn() -> Response<B>,
) -> Vec<Received>
where
    B: Body<Data = Bytes, Error = Infallible> + 'static,
{
    let received = RefCell::new(Vec::new());
    let service = service_fn(async |request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let body = read_whole(body).await?;
        received.borrow_mut().push((parts, body));
        Ok::<_, hyper::Error>(answer())
    });
    let mut builder = server::conn::http1::Builder::new();
    // It fails if the client sent no HTTP.
    let _ = builder
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(io), service)
        .await;
    received.into_inner()
}

/// The requests that a client has sent with these bytes.
pub async fn requests(bytes: &[u8]) -> Vec<Received> {
    let io = join(Cursor::new(bytes.to_vec()), sink());
    serve(io, || Response::new(Full::default())).await
}

/// What a worker reads of a request.
pub async fn sent<B>(request: Request<B>) -> Vec<Received>
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (here, there) = duplex(BUFFER);
    let (asked, received) = tokio::join!(
        ask(here, request),
        serve(there, || Response::new(Full::default()))
    );
    asked.expect("an answer to what the router sends");
    received
}

/// Asks and reads the answer whole.
async fn ask<B>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<B>,
) -> hyper::Result<WholeAnswer>
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = client::conn::http1::Builder::new();
    let begun = builder
        .preserve_header_case(true)
        .handshake(TokioIo::new(io))
        .await;
    let (mut sender, connection) = begun?;
    let asked = async move {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        Ok((parts, read_whole(body).await?))
    };
    // Its error reaches `asked` too.
    let (asked, _) = tokio::join!(asked, connection);
    asked
}

/// The answer of a worker that sends these bytes when it is asked.
pub async fn answer<B>(bytes: &[u8], request: Request<B>) -> Option<WholeAnswer>
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (here, mut there) = duplex(BUFFER);
    let worker = async move {
        // A connection on which an answer comes first is broken.
        there.read_buf(&mut Vec::new()).await?;
        there.write_all(bytes).await
    };
    let (asked, _) = tokio::join!(ask(here, request), worker);
    asked.ok()
}

/// What a client reads of an answer.
pub async fn answered<B, R>(request: Request<R>, answer: Response<B>) -> hyper::Result<WholeAnswer>
where
    B: Body<Data = Bytes, Error = Infallible> + Clone + 'static,
    R: Body<Data = Bytes> + 'static,
    R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (here, there) = duplex(BUFFER);
    let (parts, body) = answer.into_parts();
    let (asked, _) = tokio::join!(
        ask(here, request),
        serve(there, || Response::from_parts(parts.clone(), body.clone()))
    );
    asked
}

/// Fails if a header of one connection is left for the next hop.
pub fn check_end_to_end(before: &HeaderMap, after: &HeaderMap) {
    const OF_A_HOP: [&str; 6] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    for name in OF_A_HOP {
        assert!(!after.contains_key(name), "{name}");
    }
    let has_both =
        before.contains_key("transfer-encoding") && before.contains_key("content-length");
    assert!(!has_both || !after.contains_key("content-length"));
}
