//! Response bodies: whole ones, and ones that a task writes frame by frame.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The body of any answer of the engine.
pub(crate) type SimBody = UnsyncBoxBody<Bytes, Cut>;

/// The connection is to be closed in the middle of a body.
#[derive(Debug, thiserror::Error)]
#[error("cut by a simulated fault")]
pub(crate) struct Cut;

/// A body that is there at once, sent with a content length.
pub(crate) fn full(bytes: impl Into<Bytes>) -> SimBody {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A body whose frames `write` sends. The task ends with the body: dropping the body is the abort.
pub(crate) fn channel<F>(write: impl FnOnce(Sender) -> F) -> SimBody
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, frames) = mpsc::channel(64);
    let mut writer = JoinSet::new();
    writer.spawn(write(Sender(sender)));
    ChannelBody { frames, _writer: writer, flush: false }.boxed_unsync()
}

/// The writing end of [`channel`].
pub(crate) struct Sender(mpsc::Sender<Result<Bytes, Cut>>);

impl Sender {
    /// Sends one frame; waits while the client does not keep up.
    pub(crate) async fn send(&self, frame: Bytes) {
        // A receiver that is gone takes this task with it.
        let _ = self.0.send(Ok(frame)).await;
    }

    /// Closes the connection here.
    pub(crate) async fn cut(&self) {
        let _ = self.0.send(Err(Cut)).await;
    }
}

struct ChannelBody {
    frames: mpsc::Receiver<Result<Bytes, Cut>>,
    _writer: JoinSet<()>,
    flush: bool,
}

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        // hyper flushes when there is nothing to read: one frame, one write, as uvicorn does it.
        if std::mem::take(&mut self.flush) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = ready!(self.frames.poll_recv(context));
        self.flush = true;
        Poll::Ready(frame.map(|result| result.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The data frames of a body, one by one.
pub(crate) struct Frames(SimBody);

impl Frames {
    pub(crate) fn new(body: SimBody) -> Self {
        Self(body)
    }

    /// The next frame; `None` at the end, and where the body is cut.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = self.0.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                return Some(data);
            }
        }
    }
}
