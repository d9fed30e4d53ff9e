//! An engine's answer on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use edge_router_policy::Phase;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::account::Account;
use super::derender::Derendered;
use super::headers;
use super::homes::Expected;
use super::opening::Opened;
use super::readback::Keeper;
use super::stream::{BrokeOff, Stream};
use crate::body::read::{ReadError, read_capped};
use crate::body::rename::Rename;
use crate::body::scan::Object;
use crate::body::spoken::Spoken;
use crate::body::sse::{self, Usage};
use crate::error::Error;
use crate::fleet::InFlight;

/// An answer that is read whole may be this long: logprobs of a long answer run to tens of megabytes.
const MAX_WHOLE: usize = 256 * 1024 * 1024;

/// What to see to while an answer is read.
pub(super) struct Watch {
    /// Longest time without a frame.
    pub(super) idle: Duration,
    /// Waits for the id of a response that the engine keeps.
    pub(super) expected: Option<Expected>,
    /// An id that clients must not see.
    pub(super) rename: Option<Rename>,
    /// Remembers what the engine keeps for the conversation's next turn.
    pub(super) keeper: Option<Keeper>,
}

/// An answer that can be given to the client.
pub(super) struct Answer {
    pub(super) head: http::response::Parts,
    pub(super) body: Source,
}

/// Where its body comes from.
pub(super) enum Source {
    /// It was read already.
    Whole(Bytes, Option<Usage>),
    Stream(Box<Stream>),
    /// An engine's stream of token ids, as text.
    Derendered(Box<Derendered>),
}

impl Answer {
    /// An answer that was read already.
    pub(super) fn whole(head: http::response::Parts, body: Bytes) -> Self {
        Self { head, body: Source::Whole(body, None) }
    }

    /// Its status.
    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Takes in the answer to the leg that the client sees. Event streams, and whatever is not JSON, go
    /// on as they come; JSON is read whole, since private fields must be taken out of it and a connection
    /// that breaks meanwhile can still be made good.
    pub(super) async fn receive(
        response: Response<Opened>,
        in_flight: InFlight,
        watch: Watch,
    ) -> Result<Self, Error> {
        let (head, body) = response.into_parts();
        if is_event_stream(&head.headers) {
            let stream = Stream::events(body, head.status, in_flight, watch);
            return Ok(Self { head, body: Source::Stream(Box::new(stream)) });
        }
        if !content_type_is(&head.headers, "application/json") {
            let stream = Stream::raw(body, head.status, in_flight, watch.idle);
            return Ok(Self { head, body: Source::Stream(Box::new(stream)) });
        }
        let health = in_flight.instance().health();
        let bytes = whole(body, Phase::Decode, watch.idle).await.inspect_err(|_| health.request_failed())?;
        if !head.status.is_server_error() {
            health.request_succeeded();
        }
        if let Some(expected) = watch.expected {
            expected.seen_in(&bytes);
        }
        let bytes = match watch.keeper.filter(|_| head.status.is_success()) {
            Some(keeper) => {
                let mut spoken = Spoken::default();
                spoken.hear_answer(&bytes);
                keeper.answered(&spoken);
                keeper.shown(bytes)
            }
            None => bytes,
        };
        let bytes = match watch.rename {
            Some(rename) => rename.apply(bytes),
            None => bytes,
        };
        let (bytes, usage) = if head.status.is_success() { scrubbed(bytes) } else { (bytes, None) };
        Ok(Self { head, body: Source::Whole(bytes, usage) })
    }

    pub(super) fn for_client(self) -> Response<AnswerBody> {
        let mut headers = headers::for_client(self.head.headers);
        let body = match self.body {
            Source::Whole(bytes, usage) => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
                AnswerBody { kind: Kind::Whole(Some(bytes), usage), account: None }
            }
            Source::Stream(stream) => {
                if stream.may_change_length() {
                    headers.remove(CONTENT_LENGTH);
                }
                AnswerBody { kind: Kind::Stream(stream), account: None }
            }
            Source::Derendered(stream) => {
                headers.remove(CONTENT_LENGTH);
                AnswerBody { kind: Kind::Derendered(stream), account: None }
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.head.status;
        *response.headers_mut() = headers;
        response
    }
}

/// Reads an answer to its end, which must come within `limit`.
pub(super) async fn whole<B>(body: B, phase: Phase, limit: Duration) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    match tokio::time::timeout(limit, read_capped(body, MAX_WHOLE)).await {
        Err(_) => Err(Error::Stalled { phase, after: limit }),
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(ReadError::Transport(error))) => Err(Error::Cut { phase, source: Box::new(error) }),
        Ok(Err(error @ ReadError::TooLarge { .. })) => {
            Err(Error::Cut { phase, source: error.to_string().into() })
        }
    }
}

/// The body without private fields, and its usage. Only a body that seems to hold one is scanned whole.
pub(super) fn scrubbed(bytes: Bytes) -> (Bytes, Option<Usage>) {
    let usage = Usage::last_in(&bytes);
    if !sse::has_private_field(&bytes) {
        return (bytes, usage);
    }
    let Ok(object) = Object::scan(bytes.clone()) else { return (bytes, usage) };
    let private = sse::PRIVATE_FIELDS.iter().any(|name| object.is_set(name));
    (if private { sse::without_private_fields(&object) } else { bytes }, usage)
}

/// Whether an answer is made of server-sent events.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    content_type_is(headers, "text/event-stream")
}

fn content_type_is(headers: &HeaderMap, essence: &str) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|value| value.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case(essence))
}

/// The body of an answer. Dropping it before its end is how a client that leaves stops its engine.
#[derive(Debug)]
pub struct AnswerBody {
    kind: Kind,
    account: Option<Account>,
}

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>, Option<Usage>),
    Stream(Box<Stream>),
    Derendered(Box<Derendered>),
}

impl AnswerBody {
    /// A body that the router wrote itself.
    pub fn own(bytes: impl Into<Bytes>) -> Self {
        Self { kind: Kind::Whole(Some(bytes.into()), None), account: None }
    }

    /// Ties `account` to the body: it is closed when the body is.
    #[must_use]
    pub fn accounted(self, mut account: Account) -> Self {
        let mut kind = self.kind;
        match &mut kind {
            Kind::Whole(_, usage) => {
                account.first_byte();
                account.finished(*usage);
            }
            Kind::Stream(stream) => stream.end_if_empty(&mut account),
            Kind::Derendered(_) => {}
        }
        Self { kind, account: Some(account) }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        let this = &mut *self;
        match &mut this.kind {
            Kind::Whole(bytes, _) => {
                Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))))
            }
            Kind::Stream(stream) => {
                stream.poll(cx, this.account.as_mut()).map(|f| f.map(|f| f.map(Frame::data)))
            }
            Kind::Derendered(stream) => {
                stream.poll(cx, this.account.as_mut()).map(|f| f.map(|f| f.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.kind, Kind::Whole(bytes, _) if bytes.as_ref().is_none_or(Bytes::is_empty))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes, _) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Stream(stream) => stream.size_hint(),
            Kind::Derendered(_) => SizeHint::default(),
        }
    }
}
