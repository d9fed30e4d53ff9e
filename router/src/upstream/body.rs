//! What is sent on a leg, and what comes back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::pool::{Connection, Pool};
use crate::body::splice::Segments;

/// A request body made of pieces that are written without being joined.
#[derive(Debug)]
pub struct LegBody {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl From<Segments> for LegBody {
    fn from(segments: Segments) -> Self {
        let left = segments.len() as u64;
        Self { pieces: segments.into_inner().into_iter(), left }
    }
}

impl Body for LegBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.pieces.next();
        self.left -= piece.as_ref().map_or(0, |p| p.len() as u64);
        Poll::Ready(piece.map(|p| Ok(Frame::data(p))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A response body that gives its connection back to the pool when it has been read to its end, and
/// closes it when it is dropped earlier.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Incoming,
    lease: Option<(Connection, Arc<Pool>)>,
}

impl ResponseBody {
    pub(super) fn new(incoming: Incoming, connection: Connection, pool: Arc<Pool>) -> Self {
        let mut body = Self { incoming, lease: Some((connection, pool)) };
        body.give_back_at_end();
        body
    }

    fn give_back_at_end(&mut self) {
        if self.incoming.is_end_stream()
            && let Some((connection, pool)) = self.lease.take()
        {
            pool.give_back(connection);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_at_end(),
            // The connection is spent; dropping it is all that can be done.
            Some(Err(_)) => self.lease = None,
            None => {
                if let Some((connection, pool)) = self.lease.take() {
                    pool.give_back(connection);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
