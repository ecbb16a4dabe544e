//! Sends requests through a router to workers that are sockets of this test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sglang_omni_router::{Config, Router};

const PATIENCE: Duration = Duration::from_secs(20);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

type Stream = BufReader<TcpStream>;

/// A request's or an answer's head, its lines in lower case.
fn head(stream: &mut Stream) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head.to_lowercase())
}

fn length(head: &str) -> usize {
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    line.map_or(0, |length| length.trim().parse().unwrap())
}

fn exactly(stream: &mut Stream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn chunk(stream: &mut Stream) -> Vec<u8> {
    let mut size = String::new();
    stream.read_line(&mut size).unwrap();
    let bytes = exactly(stream, usize::from_str_radix(size.trim(), 16).unwrap());
    exactly(stream, 2);
    bytes
}

/// A worker that answers each request with `answer`, once it is healthy.
struct Worker {
    url: String,
    addr: SocketAddr,
    thread: JoinHandle<()>,
}

impl Worker {
    /// `answer` gets a request's head and the connection, which it closes by returning false. The port is closed after
    /// `connections`, not counting the first one, which is a health check's.
    fn start(
        connections: usize,
        answer: impl Fn(&str, &mut Stream) -> bool + Send + Clone + 'static,
    ) -> Worker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let thread = thread::spawn(move || {
            for stream in listener.incoming().take(1 + connections) {
                let (mut stream, answer) = (BufReader::new(stream.unwrap()), answer.clone());
                let serve = move || {
                    while let Some(head) = head(&mut stream) {
                        let is_probe = head.starts_with("get /health ");
                        let goes_on = match is_probe {
                            true => stream.get_mut().write_all(OK).is_err(),
                            false => answer(&head, &mut stream),
                        };
                        if !goes_on {
                            break;
                        }
                    }
                };
                thread::spawn(serve);
            }
        });
        Worker {
            url: format!("http://{addr}"),
            addr,
            thread,
        }
    }

    fn answering(text: &'static [u8]) -> Worker {
        Worker::start(usize::MAX - 1, move |head, stream| {
            exactly(stream, length(head));
            stream.get_mut().write_all(text).is_ok()
        })
    }

    /// Waits until its port is closed.
    fn closed(self) {
        self.thread.join().unwrap();
        assert!(TcpStream::connect(self.addr).is_err());
    }
}

/// A router in front of these workers, all of which have answered their one health check.
fn router(workers: &[&Worker]) -> Router {
    let urls: Vec<&str> = workers.iter().map(|worker| worker.url.as_str()).collect();
    let config = format!(
        r#"{{"port": 0, "threads": 1, "policy": "round_robin", "probe_interval": 3600, "worker_urls": {urls:?}}}"#
    );
    let router = Router::start(Config::from_json(&config).unwrap()).unwrap();
    let began = Instant::now();
    while get(&router, "/workers").matches(r#""state":"up""#).count() < urls.len() {
        assert!(began.elapsed() < PATIENCE, "{}", get(&router, "/workers"));
        thread::sleep(Duration::from_millis(10));
    }
    router
}

fn client(router: &Router) -> Stream {
    let stream = TcpStream::connect(router.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

fn send(stream: &mut Stream, bytes: impl AsRef<[u8]>) {
    stream.get_mut().write_all(bytes.as_ref()).unwrap();
}

/// Head and body of an answer that has a length.
fn answer(stream: &mut Stream) -> (String, String) {
    let head = head(stream).expect("the connection ended before an answer");
    let body = exactly(stream, length(&head));
    (head, String::from_utf8(body).unwrap())
}

fn get(router: &Router, path: &str) -> String {
    let mut stream = client(router);
    send(
        &mut stream,
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    );
    answer(&mut stream).1
}

fn post(router: &Router, body: &str) -> (String, String) {
    let mut stream = client(router);
    let length = body.len();
    send(
        &mut stream,
        format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        ),
    );
    answer(&mut stream)
}

fn metric(router: &Router, name: &str) -> u64 {
    let metrics = get(router, "/metrics");
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(&format!("sglang_omni_router_{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

fn signal() -> (Sender<()>, Receiver<()>) {
    channel()
}

#[test]
fn a_request_goes_to_a_worker_and_its_answer_back() {
    let worker = Worker::start(2, |head, stream| {
        assert!(head.contains("via: 1.1 sglang-omni-router") && head.contains("x-request-id: "));
        assert!(!head.contains("x-hop"), "{head}");
        assert_eq!(exactly(stream, length(head)), b"hello");
        stream.get_mut().write_all(OK).is_ok()
    });
    let router = router(&[&worker]);
    let mut stream = client(&router);
    // On one connection to the worker, too.
    for _ in 0..3 {
        send(
            &mut stream,
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\nhello",
        );
        let (head, body) = answer(&mut stream);
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains("x-sglang-omni-worker: ") && body == "ok");
    }
    assert_eq!(metric(&router, "retries_total"), 0);
    assert_eq!(metric(&router, "requests_in_flight"), 0);
}

#[test]
fn a_refused_connection_costs_another_attempt_and_no_request() {
    let (gone, good) = (Worker::start(0, |_, _| false), Worker::answering(OK));
    let router = router(&[&gone, &good]);
    gone.closed();
    for _ in 0..4 {
        assert_eq!(post(&router, "{}").1, "ok");
    }
    // Down from then on, it is behind the other one.
    assert_eq!(metric(&router, "retries_total"), 1);
    let (states, workers) = (r#""state":"down""#, get(&router, "/workers"));
    assert_eq!(workers.matches(states).count(), 1, "{workers}");
}

#[test]
fn a_request_that_ends_two_connections_goes_to_no_third_worker() {
    let ends = |head: &str, stream: &mut Stream| {
        exactly(stream, length(head));
        false
    };
    let workers: Vec<Worker> = (0..3).map(|_| Worker::start(9, ends)).collect();
    let router = router(&workers.iter().collect::<Vec<_>>());
    let (head, body) = post(&router, "{}");
    assert!(head.starts_with("http/1.1 502 "), "{head}");
    assert!(body.contains("workers_lost"), "{body}");
    assert_eq!(metric(&router, "retries_total"), 1);
}

#[test]
fn an_answer_that_asks_for_time_is_given_by_another_worker() {
    let busy = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n";
    let (busy, good) = (Worker::answering(busy), Worker::answering(OK));
    let router = router(&[&busy, &good]);
    for _ in 0..4 {
        assert_eq!(post(&router, "{}").1, "ok");
    }
    assert_eq!(metric(&router, "retries_total"), 1);
}

#[test]
fn bodies_flow_both_ways_as_they_come() {
    let (arrived, has_arrived) = signal();
    let (read, is_read) = signal();
    let is_read = std::sync::Arc::new(std::sync::Mutex::new(is_read));
    let worker = Worker::start(1, move |head, stream| {
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        assert_eq!(chunk(stream), b"first");
        arrived.send(()).unwrap();
        assert_eq!(
            (chunk(stream), chunk(stream)),
            (b"last".to_vec(), Vec::new())
        );
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
        send(stream, head);
        is_read.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        send(stream, "4\r\nlast\r\n0\r\n\r\n");
        true
    });
    let router = router(&[&worker]);
    let mut stream = client(&router);
    send(
        &mut stream,
        "POST /upload HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
    );
    has_arrived
        .recv_timeout(PATIENCE)
        .expect("the body is held");
    send(&mut stream, "4\r\nlast\r\n0\r\n\r\n");
    assert!(head(&mut stream).unwrap().starts_with("http/1.1 200 "));
    assert_eq!(chunk(&mut stream), b"first");
    read.send(()).unwrap();
    assert_eq!(chunk(&mut stream), b"last");
    assert_eq!(chunk(&mut stream), b"");
}

#[test]
fn an_upgraded_connection_passes_bytes_and_finds_a_worker_that_takes_it() {
    let (gone, echo) = (
        Worker::start(0, |_, _| false),
        Worker::start(9, |head, stream| {
            assert!(head.contains("upgrade: echo"), "{head}");
            send(
                stream,
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
            );
            while let Ok(bytes @ [_, ..]) = stream.fill_buf().map(<[u8]>::to_vec).as_deref() {
                stream.consume(bytes.len());
                send(stream, bytes);
            }
            false
        }),
    );
    let router = router(&[&gone, &echo]);
    gone.closed();
    for _ in 0..2 {
        let mut stream = client(&router);
        send(
            &mut stream,
            "GET /v1/realtime HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
        );
        assert!(head(&mut stream).unwrap().starts_with("http/1.1 101 "));
        for text in ["one", "two"] {
            send(&mut stream, text);
            assert_eq!(exactly(&mut stream, 3), text.as_bytes());
        }
        assert_eq!(metric(&router, "requests_in_flight"), 1);
        drop(stream);
        let began = Instant::now();
        while metric(&router, "requests_in_flight") > 0 {
            assert!(began.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(10));
        }
    }
    assert_eq!(metric(&router, "retries_total"), 1);
}
