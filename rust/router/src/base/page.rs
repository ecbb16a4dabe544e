//! A long text in pieces, and the body that brings it to a client.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::vec;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::yield_now;

/// Larger pieces would keep a lane from other requests while the kernel copies them.
const PIECE: usize = 128 << 10;

/// A text that several clients may get, written from its start to its end.
#[derive(Clone, Default)]
pub struct Page {
    pieces: Vec<Bytes>,
    /// Its end, which is no piece yet.
    last: Vec<u8>,
}

impl Page {
    pub fn push(&mut self, text: &str) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let room = rest.len().min(PIECE - self.last.len());
            let (fits, after) = rest.split_at(room);
            self.last.extend_from_slice(fits);
            rest = after;
            if self.last.len() == PIECE {
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        self.pieces.push(std::mem::take(&mut self.last).into());
    }

    /// Ends the text, so that its copies share their memory.
    pub fn finish(mut self) -> Page {
        if !self.last.is_empty() {
            self.end_piece();
        }
        self
    }

    /// True if no body holds a piece of it any more.
    pub fn is_delivered(&self) -> bool {
        self.pieces.iter().all(Bytes::is_unique)
    }

    pub fn into_body(self) -> PageBody {
        let page = self.finish();
        PageBody {
            left: page.pieces.iter().map(|piece| piece.len() as u64).sum(),
            pieces: page.pieces.into_iter(),
            is_next: true,
        }
    }
}

pub struct PageBody {
    pieces: vec::IntoIter<Bytes>,
    left: u64,
    /// True if a piece may follow; false if other requests come first.
    is_next: bool,
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.is_next = !self.is_next;
        if self.is_next && self.left > 0 {
            // It goes on once the runtime has asked the kernel what arrived; if it were only woken, it would go on at once.
            return pin!(yield_now()).poll(cx).map(|()| None);
        }
        let piece = self.pieces.next();
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl std::fmt::Display for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = [&*self.pieces.concat(), &*self.last].concat();
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Waker;

    use http_body_util::BodyExt;

    use super::*;

    fn page(texts: &[&str]) -> Page {
        let mut page = Page::default();
        texts.iter().for_each(|text| page.push(text));
        page
    }

    #[tokio::test]
    async fn all_of_a_page_arrives_in_pieces_that_are_not_large() {
        for texts in [
            &[][..],
            &["", "short", ""],
            &[&"é".repeat(PIECE), "a", &"é".repeat(PIECE / 2)],
        ] {
            let mut body = page(texts).finish().into_body();
            let text = texts.concat();
            assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
            let mut arrived = Vec::new();
            while let Some(frame) = body.frame().await {
                let piece = frame.unwrap().into_data().unwrap();
                assert!(piece.len() <= PIECE);
                arrived.extend_from_slice(&piece);
            }
            assert!(body.is_end_stream());
            assert_eq!(arrived, text.as_bytes());
        }
    }

    #[tokio::test]
    async fn other_requests_come_between_two_pieces() {
        let page = page(&[&"x".repeat(3 * PIECE)]).finish();
        let mut body = pin!(page.clone().into_body());
        assert!(!page.is_delivered());
        let mut kinds = Vec::new();
        while !body.is_end_stream() {
            let mut noop = Context::from_waker(Waker::noop());
            kinds.push(body.as_mut().poll_frame(&mut noop).is_ready());
        }
        assert_eq!(kinds, [true, false, true, false, true]);
        assert!(page.is_delivered());
        assert!(poll_fn(|cx| body.as_mut().poll_frame(cx)).await.is_none());
    }
}
