//! What an engine was asked, and how far each answer got.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::body::{Cut, SimBody};
use super::call::Endpoint;
use super::server::Activity;
use crate::lock::lock;

/// One request that an engine has seen.
#[derive(Clone, Debug)]
pub struct Request {
    /// `POST`, for example.
    pub method: String,
    /// The path without its query.
    pub path: String,
    /// All headers, names in lower case, in the order of arrival.
    pub headers: Vec<(String, String)>,
    /// The body's bytes as they came.
    pub body: Bytes,
    /// When its headers had arrived.
    pub at: Instant,
    /// The number of its connection, since the engine's last start.
    pub connection: usize,
    /// The status of the answer, once there is one.
    pub status: Option<u16>,
    /// Frames of the answer's body that went to the connection; one per event in a stream.
    pub frames: usize,
    /// How it ended, once it has.
    pub end: Option<End>,
}

/// How a request ended, as the engine saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The whole answer was handed to the connection.
    Answered,
    /// The engine closed the connection itself, because of a fault.
    Cut,
    /// The connection went away before the end.
    Aborted,
}

impl Request {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// A header's value; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether the client went away before the end of the answer.
    pub fn aborted(&self) -> bool {
        self.end == Some(End::Aborted)
    }

    /// Whether it asks the engine to generate tokens.
    pub fn generates(&self) -> bool {
        self.method == "POST" && Endpoint::of(&self.path).is_some()
    }

    /// For `GET /sim/requests`.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "method": self.method, "path": self.path, "headers": self.headers,
            "body": String::from_utf8_lossy(&self.body), "status": self.status, "frames": self.frames,
            "end": self.end.map(|end| format!("{end:?}").to_lowercase()),
        })
    }
}

/// All requests of an engine, over restarts.
#[derive(Default)]
pub(crate) struct Journal {
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// The number of the first request that is still in the log.
    first: usize,
    requests: Vec<Request>,
}

impl Journal {
    pub(crate) fn requests(&self) -> Vec<Request> {
        lock(&self.log).requests.clone()
    }

    pub(crate) fn clear(&self) {
        let mut log = lock(&self.log);
        log.first += log.requests.len();
        log.requests.clear();
    }

    /// Takes down a request; what becomes of it follows through the entry. `activity` is of its
    /// connection.
    pub(crate) fn open(self: &Arc<Self>, parts: &Parts, activity: watch::Sender<Activity>) -> Entry {
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let request = Request {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: Bytes::new(),
            at: Instant::now(),
            connection: activity.borrow().connection,
            status: None,
            frames: 0,
            end: None,
        };
        let mut log = lock(&self.log);
        let number = log.first + log.requests.len();
        log.requests.push(request);
        activity.send_modify(|activity| {
            activity.open += 1;
            activity.seen += 1;
        });
        Entry { journal: Arc::clone(self), number, end: End::Aborted, activity }
    }
}

/// A request that goes on. Dropped before [`Entry::end`], it counts as aborted.
pub(crate) struct Entry {
    journal: Arc<Journal>,
    number: usize,
    end: End,
    activity: watch::Sender<Activity>,
}

impl Entry {
    pub(crate) fn body(&self, body: &Bytes) {
        self.update(|request| request.body = body.clone());
    }

    /// How it will have ended, should nothing more happen.
    pub(crate) fn end(&mut self, end: End) {
        self.end = end;
    }

    /// Follows the answer's body to its end.
    pub(crate) fn follow(mut self, response: http::Response<SimBody>) -> http::Response<SimBody> {
        self.update(|request| request.status = Some(response.status().as_u16()));
        if response.body().is_end_stream() {
            self.end = End::Answered;
        }
        response.map(|body| Followed { body, entry: self }.boxed_unsync())
    }

    fn update(&self, change: impl FnOnce(&mut Request)) {
        let mut log = lock(&self.journal.log);
        // The journal may have been cleared meanwhile.
        let place = self.number.checked_sub(log.first);
        if let Some(request) = place.and_then(|place| log.requests.get_mut(place)) {
            change(request);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let end = self.end;
        self.update(|request| request.end = Some(end));
        self.activity.send_modify(|activity| activity.open -= 1);
    }
}

struct Followed {
    body: SimBody,
    entry: Entry,
}

impl Body for Followed {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(_)) => self.entry.update(|request| request.frames += 1),
            Some(Err(Cut)) => self.entry.end(End::Cut),
            None => self.entry.end(End::Answered),
        }
        if self.body.is_end_stream() {
            self.entry.end(End::Answered);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
