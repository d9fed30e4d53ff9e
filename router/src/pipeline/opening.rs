//! Holds back the opening of a streamed answer: what an engine sends before it says anything.
//!
//! vLLM begins a stream with 200, and a chat with the speaker's role, before it knows whether it can
//! fetch the KV cache (engine contract §0.5). Whoever waits for its first word can still try again, or
//! answer with a true status.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use memchr::memchr;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Answer, is_event_stream};
use crate::upstream::ResponseBody;

/// No more than this is held back.
const MAX_HELD: usize = 64 * 1024;

/// The same where the opening may name the tokens of a prompt: two million of them.
const MAX_HELD_WITH_TOKENS: usize = 16 * 1024 * 1024;

/// Keys of a choice, or of what it adds, that say nothing by themselves.
const PLACE: [&str; 2] = ["index", "role"];

/// How a stream begins.
pub(super) enum Beginning {
    /// With a word, or with nothing for as long as it was listened to.
    Speaks(Response<Opened>),
    /// With an error: the client may be given it as an answer.
    Fails(Answer),
}

/// An answer whose opening can be listened to.
pub(super) struct Listening {
    head: http::response::Parts,
    body: ResponseBody,
    heard: Heard,
}

impl Listening {
    /// `names_tokens` says that the engine was asked for the ids of the prompt's tokens.
    pub(super) fn to(response: Response<ResponseBody>, names_tokens: bool) -> Self {
        let (head, body) = response.into_parts();
        Self { head, body, heard: Heard { opening: Opening::new(names_tokens), ..Heard::default() } }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Whether it is an event stream that an engine has begun, which may yet turn out to be an error.
    pub(super) fn may_fail(&self) -> bool {
        self.head.status == StatusCode::OK && is_event_stream(&self.head.headers)
    }

    /// Waits for the first word. What came before it is kept: this can be given up and taken up again.
    ///
    /// # Errors
    /// If the connection breaks meanwhile.
    pub(super) async fn listen(&mut self) -> Result<(), hyper::Error> {
        self.heard.listen(&mut self.body).await
    }

    /// What came of it so far.
    pub(super) fn end(mut self) -> Beginning {
        if let Verdict::Fails { status, json } = self.heard.verdict {
            self.head.status = status;
            self.head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return Beginning::Fails(Answer::whole(self.head, json));
        }
        let Heard { opening, ended, .. } = self.heard;
        let opened = Opened { held: opening.held.freeze(), rest: (!ended).then_some(self.body) };
        Beginning::Speaks(Response::from_parts(self.head, opened))
    }
}

/// The body of an answer whose beginning may have been read already.
#[derive(Debug)]
pub(super) struct Opened {
    held: Bytes,
    rest: Option<ResponseBody>,
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

/// What was heard so far.
#[derive(Default)]
struct Heard {
    opening: Opening,
    verdict: Verdict,
    ended: bool,
}

impl Heard {
    /// Reads on until there is something to go by, or the end. Nothing is lost if it is dropped meanwhile.
    async fn listen<B>(&mut self, body: &mut B) -> Result<(), B::Error>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        while self.verdict == Verdict::Silent && !self.ended {
            match body.frame().await {
                None => self.ended = true,
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.verdict = self.opening.push(&data);
                    }
                }
            }
        }
        Ok(())
    }
}

/// What the opening amounts to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Verdict {
    /// Nothing was said so far.
    #[default]
    Silent,
    /// Something was said, or it was too long to wait for more.
    Speaks,
    /// An error was the first thing said: its status, and the event's JSON.
    Fails { status: StatusCode, json: Bytes },
}

/// The bytes of an opening. What they amount to does not depend on how they are cut.
#[derive(Debug)]
struct Opening {
    held: BytesMut,
    /// How many of them may be held.
    most: usize,
    /// Where the line that has not ended yet begins.
    line: usize,
}

impl Default for Opening {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Opening {
    fn new(names_tokens: bool) -> Self {
        let most = if names_tokens { MAX_HELD_WITH_TOKENS } else { MAX_HELD };
        Self { held: BytesMut::new(), most, line: 0 }
    }

    fn push(&mut self, frame: &[u8]) -> Verdict {
        let mut searched = self.held.len();
        self.held.extend_from_slice(frame);
        while let Some(at) = memchr(b'\n', &self.held[searched..]) {
            let end = searched + at;
            if end >= self.most {
                break;
            }
            let verdict = judge(&self.held[self.line..end]);
            if verdict != Verdict::Silent {
                return verdict;
            }
            (self.line, searched) = (end + 1, end + 1);
        }
        if self.held.len() > self.most { Verdict::Speaks } else { Verdict::Silent }
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
