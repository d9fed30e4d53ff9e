//! Passes the frames of an answer on as they come.
//!
//! Nothing is read from the engine that the client has not made room for: a slow reader slows its
//! engine down, and costs the router one frame.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as _, SizeHint};
use thiserror::Error;
use tokio::time::{Instant, Sleep, sleep};

use super::account::Account;
use super::answer::Watch;
use super::homes::Expected;
use super::opening::Opened;
use super::readback::Keeper;
use crate::body::sse::EventFilter;
use crate::error::render::RenderError;
use crate::fleet::InFlight;

/// Sent to the client of an event stream that breaks off. No `[DONE]` follows, and the connection is
/// closed without a proper end: whoever looks at one of the three knows that something is missing.
const LAST_WORDS: &str = "data: {\"error\":{\"message\":\"the engine's answer broke off\",\"type\":\"engine_error\",\"param\":null,\"code\":\"engine_answer_cut\"}}\n\n";

/// The server needs a moment to write the last words before it learns that the body has failed.
pub(super) const PARTING: Duration = Duration::from_millis(20);

/// Why a body ended before its end.
#[derive(Debug, Error)]
pub enum BrokeOff {
    /// The engine's connection.
    #[error("the engine's connection broke")]
    Engine(#[source] hyper::Error),
    /// No renderer could turn it into text.
    #[error("the answer could not be rendered")]
    Render(#[source] RenderError),
    /// The engine was silent for too long.
    #[error("the engine was silent for {0:?}")]
    Silent(Duration),
}

/// An answer that is passed on.
#[derive(Debug)]
pub(super) struct Stream {
    state: State,
    filter: Option<EventFilter>,
    idle: Duration,
    alarm: Pin<Box<Sleep>>,
    /// The id of a response that the engine keeps, while it has not been seen.
    expected: Option<Expected>,
    /// Remembers what the engine keeps for the next turn.
    keeper: Option<Keeper>,
    /// Frames since the alarm was set.
    frames: u32,
    /// Whether what is read goes on to the client as it is.
    direct: bool,
    /// Of the answer's head.
    status: StatusCode,
    /// Counts the request as in flight until the stream is gone.
    in_flight: InFlight,
}

#[derive(Debug)]
enum State {
    Flowing(Opened),
    /// The last words have been said.
    Parting(Option<BrokeOff>),
    Ended,
}

impl Stream {
    /// An event stream.
    pub(super) fn events(body: Opened, status: StatusCode, in_flight: InFlight, watch: Watch) -> Self {
        let Watch { idle, expected, rename, keeper } = watch;
        let filter = Some(EventFilter::new(rename, keeper.is_some()));
        Self { filter, expected, keeper, ..Self::raw(body, status, in_flight, idle) }
    }

    /// Something else.
    pub(super) fn raw(body: Opened, status: StatusCode, in_flight: InFlight, idle: Duration) -> Self {
        let alarm = Box::pin(sleep(idle));
        Self {
            state: State::Flowing(body),
            filter: None,
            idle,
            alarm,
            expected: None,
            keeper: None,
            frames: 0,
            direct: true,
            status,
            in_flight,
        }
    }

    /// The client's first byte is another one.
    pub(super) fn keep_first_byte(&mut self) {
        self.direct = false;
    }

    pub(super) fn may_change_length(&self) -> bool {
        self.filter.is_some()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Flowing(body) if self.filter.is_none() => body.size_hint(),
            _ => SizeHint::default(),
        }
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        account: Option<&mut Account>,
    ) -> Poll<Option<Result<Bytes, BrokeOff>>> {
        let mut account = account;
        loop {
            let body = match &mut self.state {
                State::Flowing(body) => body,
                State::Parting(error) => {
                    std::task::ready!(self.alarm.as_mut().poll(cx));
                    let error = error.take();
                    self.state = State::Ended;
                    return Poll::Ready(error.map(Err));
                }
                State::Ended => return Poll::Ready(None),
            };
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let is_last = body.is_end_stream();
                    let Ok(data) = frame.into_data() else { continue };
                    self.frames = self.frames.wrapping_add(1);
                    if let Some(account) = account.as_deref_mut().filter(|_| self.direct) {
                        account.first_byte();
                    }
                    if self.expected.as_ref().is_some_and(|expected| expected.seen_in(&data)) {
                        self.expected = None;
                    }
                    let data = match &mut self.filter {
                        Some(filter) => filter.push(data),
                        None => data,
                    };
                    let data = match &self.keeper {
                        Some(keeper) => keeper.shown(data),
                        None => data,
                    };
                    // Nobody asks again for an answer of a known length that is complete.
                    if is_last && self.filter.is_none() {
                        self.end(account.as_deref_mut());
                    }
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(self.end(account).map(Ok)),
                Poll::Ready(Some(Err(error))) => return self.break_off(BrokeOff::Engine(error), account),
                Poll::Pending => {
                    std::task::ready!(self.alarm.as_mut().poll(cx));
                    if std::mem::take(&mut self.frames) == 0 {
                        return self.break_off(BrokeOff::Silent(self.idle), account);
                    }
                    self.alarm.as_mut().reset(Instant::now() + self.idle);
                }
            }
        }
    }

    /// Closes the account of an answer without a body: the server does not ask for one.
    pub(super) fn end_if_empty(&mut self, account: &mut Account) {
        if self.filter.is_none() && matches!(&self.state, State::Flowing(body) if body.is_end_stream()) {
            self.end(Some(account));
        }
    }

    /// The engine has said all; what the filter still holds goes out.
    fn end(&mut self, account: Option<&mut Account>) -> Option<Bytes> {
        self.state = State::Ended;
        if !self.status.is_server_error() {
            self.in_flight.instance().health().request_succeeded();
        }
        let mut rest = self.filter.as_mut().map(EventFilter::finish);
        if let Some((keeper, spoken)) =
            self.keeper.take().zip(self.filter.as_ref().and_then(EventFilter::spoken))
        {
            keeper.answered(spoken);
            rest = rest.map(|rest| keeper.shown(rest));
        }
        if let Some(account) = account {
            account.finished(self.filter.as_ref().and_then(EventFilter::usage));
        }
        rest.filter(|rest| !rest.is_empty())
    }

    fn break_off(
        &mut self,
        error: BrokeOff,
        account: Option<&mut Account>,
    ) -> Poll<Option<Result<Bytes, BrokeOff>>> {
        self.in_flight.instance().health().request_failed();
        if let Some(account) = account {
            account.broke_off(matches!(error, BrokeOff::Silent(_)), &error);
        }
        if self.filter.is_none() {
            self.state = State::Ended;
            return Poll::Ready(Some(Err(error)));
        }
        self.alarm.as_mut().reset(Instant::now() + PARTING);
        self.state = State::Parting(Some(error));
        Poll::Ready(Some(Ok(Bytes::from_static(LAST_WORDS.as_bytes()))))
    }
}
