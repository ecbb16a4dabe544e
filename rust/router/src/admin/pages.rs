//! Writes the pages of `/metrics` on a thread of their own: in a large fleet a page is megabytes, and no request waits
//! while one is written. Those who ask for the same page while another is written get one together.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::admin::{metrics, worker_metrics};
use crate::base::page::Page;
use crate::base::supervise::keep_running;
use crate::proxy::lane::Proxy;
use crate::upstream::pool::Pool;

/// How many may ask before the next one must wait to ask.
const QUEUE: usize = 64;

/// A page that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whether workers are named by their URLs instead of their ids.
    pub sees_urls: bool,
    /// Whether the workers' own metrics are in it.
    pub of_workers: bool,
    /// The `Authorization` that workers are shown for them.
    pub key: Option<HeaderValue>,
}

struct Asked {
    wanted: Wanted,
    page: oneshot::Sender<Page>,
}

/// Gets pages from their writers.
#[derive(Clone)]
pub struct MetricsPages {
    /// Pages for which workers are asked have a writer of their own: a worker may be slow.
    with_workers: mpsc::Sender<Asked>,
    without: mpsc::Sender<Asked>,
}

/// What writes the pages.
pub struct Writers([mpsc::Receiver<Asked>; 2]);

pub fn channel() -> (MetricsPages, Writers) {
    let (with_workers, first) = mpsc::channel(QUEUE);
    let (without, second) = mpsc::channel(QUEUE);
    let pages = MetricsPages {
        with_workers,
        without,
    };
    (pages, Writers([first, second]))
}

impl MetricsPages {
    /// None once the router shuts down.
    pub async fn get(&self, wanted: Wanted) -> Option<Page> {
        let writer = match wanted.of_workers {
            true => &self.with_workers,
            false => &self.without,
        };
        let (page, written) = oneshot::channel();
        writer.send(Asked { wanted, page }).await.ok()?;
        written.await.ok()
    }
}

impl Writers {
    /// Writes on the calling thread, until its runtime ends.
    pub fn start(self, proxy: &Arc<Proxy>) {
        for asked in self.0 {
            let (asked, proxy) = (Rc::new(Mutex::new(asked)), proxy.clone());
            keep_running("pages of metrics", move || {
                write(asked.clone(), proxy.clone())
            });
        }
    }
}

async fn write(asked: Rc<Mutex<mpsc::Receiver<Asked>>>, proxy: Arc<Proxy>) {
    let mut asked = asked.lock().await;
    while let Some(first) = asked.recv().await {
        let mut waiting = vec![first];
        while let Ok(next) = asked.try_recv() {
            waiting.push(next);
        }
        while let Some(Asked { wanted, .. }) = waiting.first() {
            let wanted = wanted.clone();
            let text = page(&proxy, &wanted).await;
            let (same, others): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|one| one.wanted == wanted);
            for each in same {
                // Who has left does not mind.
                let _ = each.page.send(text.clone());
            }
            spawn_local(outlive(text));
            waiting = others;
        }
    }
}

/// Holds a page until its clients have it: so its memory is given back here, and not by a lane, for milliseconds.
async fn outlive(page: Page) {
    while !page.is_delivered() {
        sleep(Duration::from_millis(100)).await;
    }
}

async fn page(proxy: &Proxy, wanted: &Wanted) -> Page {
    let mut page = Page::default();
    page.push(&metrics::render(proxy, wanted.sees_urls));
    if !wanted.of_workers {
        return page.finish();
    }
    let headers = HeaderMap::from_iter(wanted.key.clone().map(|key| (AUTHORIZATION, key)));
    let pool = Pool::new(proxy.trust.clone());
    let theirs = worker_metrics::gather(&pool, &proxy.fleet, &headers, wanted.sees_urls).await;
    theirs.write(&mut page);
    page.finish()
}
