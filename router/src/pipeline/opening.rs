//! Holds back the opening of a streamed answer: what an engine sends before it says anything.
//!
//! vLLM begins a stream with 200, and a chat with the speaker's role, before it knows whether it can
//! fetch the KV cache (engine contract §0.5). Whoever waits for its first word can still try again, or
//! answer with a true status.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use memchr::memchr;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::answer::Answer;
use crate::upstream::ResponseBody;

/// No more than this is held back.
const MAX_HELD: usize = 64 * 1024;

/// Keys of a choice, or of what it adds, that say nothing by themselves.
const PLACE: [&str; 2] = ["index", "role"];

/// How a stream begins.
pub(super) enum Beginning {
    /// With a word, or with nothing for longer than it could be held.
    Speaks(Response<Opened>),
    /// With an error: the client may be given it as an answer.
    Fails(Answer),
}

/// Waits for the first word of an event stream, at most for `limit`.
///
/// # Errors
/// If the connection breaks meanwhile.
pub(super) async fn hold(
    response: Response<ResponseBody>,
    limit: Duration,
) -> Result<Beginning, hyper::Error> {
    let (mut head, mut body) = response.into_parts();
    let heard = listen(&mut body, limit).await?;
    if let Verdict::Fails { status, json } = heard.verdict {
        head.status = status;
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Ok(Beginning::Fails(Answer::whole(head, json)));
    }
    let opened = Opened { held: heard.held, rest: (!heard.ended).then_some(body) };
    Ok(Beginning::Speaks(Response::from_parts(head, opened)))
}

/// The body of an answer whose beginning may have been read already.
#[derive(Debug)]
pub(super) struct Opened {
    held: Bytes,
    rest: Option<ResponseBody>,
}

impl From<ResponseBody> for Opened {
    fn from(body: ResponseBody) -> Self {
        Self { held: Bytes::new(), rest: Some(body) }
    }
}

impl Body for Opened {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if !self.held.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.held)))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            Some(rest) if self.held.is_empty() => rest.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

/// What came until there was something to go by.
struct Heard {
    verdict: Verdict,
    held: Bytes,
    ended: bool,
}

async fn listen<B>(body: &mut B, limit: Duration) -> Result<Heard, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let deadline = Instant::now() + limit;
    let (mut opening, mut verdict, mut ended) = (Opening::default(), Verdict::Silent, false);
    while let Verdict::Silent = verdict {
        match timeout_at(deadline, body.frame()).await {
            Err(_) => break,
            Ok(None) => {
                ended = true;
                break;
            }
            Ok(Some(frame)) => {
                if let Ok(data) = frame?.into_data() {
                    verdict = opening.push(&data);
                }
            }
        }
    }
    Ok(Heard { verdict, held: opening.held.freeze(), ended })
}

/// What the opening amounts to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Nothing was said so far.
    Silent,
    /// Something was said, or it was too long to wait for more.
    Speaks,
    /// An error was the first thing said: its status, and the event's JSON.
    Fails { status: StatusCode, json: Bytes },
}

/// The bytes of an opening. What they amount to does not depend on how they are cut.
#[derive(Debug, Default)]
struct Opening {
    held: BytesMut,
    /// Where the line that has not ended yet begins.
    line: usize,
}

impl Opening {
    fn push(&mut self, frame: &[u8]) -> Verdict {
        let mut searched = self.held.len();
        self.held.extend_from_slice(frame);
        while let Some(at) = memchr(b'\n', &self.held[searched..]) {
            let end = searched + at;
            if end >= MAX_HELD {
                break;
            }
            let verdict = judge(&self.held[self.line..end]);
            if verdict != Verdict::Silent {
                return verdict;
            }
            (self.line, searched) = (end + 1, end + 1);
        }
        if self.held.len() > MAX_HELD { Verdict::Speaks } else { Verdict::Silent }
    }
}

/// What one line of an event stream amounts to. Engines put all of an event's data on one line.
fn judge(line: &[u8]) -> Verdict {
    #[derive(Deserialize)]
    struct Event {
        error: Option<Value>,
        choices: Option<Vec<Value>>,
    }
    let Some(data) = line.strip_prefix(b"data:") else { return Verdict::Silent };
    let data = data.trim_ascii();
    match serde_json::from_slice(data) {
        Ok(Event { error: Some(error), .. }) => {
            let code = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
            let status = code.filter(|code| (400..600).contains(code)).map(StatusCode::from_u16);
            let status = status.and_then(Result::ok).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Verdict::Fails { status, json: Bytes::copy_from_slice(data) }
        }
        Ok(Event { choices: Some(choices), .. }) if !choices.is_empty() && choices.iter().all(is_blank) => {
            Verdict::Silent
        }
        _ => Verdict::Speaks,
    }
}

/// Whether there is nothing in a choice, or in a part of it, but its place.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => {
            fields.iter().all(|(name, value)| PLACE.contains(&name.as_str()) || is_blank(value))
        }
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
