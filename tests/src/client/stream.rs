//! An answer as it arrives.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::secrets::Watch;
use super::{Answer, Driver, PATIENCE};
use crate::sse::{Event, EventBuffer, Transcript};

/// An answer whose headers have arrived. Dropping it closes the connection.
pub struct Stream {
    /// The HTTP status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    body: Incoming,
    events: EventBuffer,
    arrived: VecDeque<Arrival>,
    watch: Option<Watch>,
    _driver: Driver,
}

/// An event, and when its last byte came.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The event.
    pub event: Event,
    /// When it was complete.
    pub at: Instant,
}

impl Stream {
    pub(super) fn new(answer: Response<Incoming>, driver: Driver, watch: Option<Watch>) -> Self {
        let (parts, body) = answer.into_parts();
        if let Some(watch) = &watch {
            watch.headers(&parts.headers);
        }
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            events: EventBuffer::default(),
            arrived: VecDeque::new(),
            watch,
            _driver: driver,
        }
    }

    /// The next bytes, as the connection delivers them; `None` at the regular end.
    ///
    /// # Errors
    /// If the connection breaks before the end, or nothing comes for too long.
    pub async fn next_bytes(&mut self) -> Result<Option<Bytes>> {
        loop {
            match timeout(PATIENCE, self.body.frame()).await.context("nothing more arrives")? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        if let Some(watch) = &mut self.watch {
                            watch.see(&data);
                        }
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The next event; `None` at the regular end.
    ///
    /// # Errors
    /// If the connection breaks before the end, or nothing comes for too long.
    pub async fn next_event(&mut self) -> Result<Option<Arrival>> {
        while self.arrived.is_empty() {
            let Some(bytes) = self.next_bytes().await? else { return Ok(None) };
            let at = Instant::now();
            self.arrived.extend(self.events.push(&bytes).into_iter().map(|event| Arrival { event, at }));
        }
        Ok(self.arrived.pop_front())
    }

    /// All events up to the end.
    ///
    /// # Errors
    /// If the connection breaks before the end, or nothing comes for too long.
    pub async fn events(mut self) -> Result<Vec<Arrival>> {
        let mut events = Vec::new();
        while let Some(event) = self.next_event().await? {
            events.push(event);
        }
        Ok(events)
    }

    /// What the whole stream says.
    ///
    /// # Errors
    /// If the connection breaks before the end, or nothing comes for too long.
    pub async fn transcript(self) -> Result<Transcript> {
        let events = self.events().await?;
        Ok(Transcript::of_events(events.iter().map(|arrival| &arrival.event)))
    }

    /// The rest of the body, as one answer.
    ///
    /// # Errors
    /// If the connection breaks before the end, or nothing comes for too long.
    pub async fn whole(mut self) -> Result<Answer> {
        let mut body = BytesMut::new();
        while let Some(bytes) = self.next_bytes().await? {
            body.extend_from_slice(&bytes);
        }
        Ok(Answer { status: self.status, headers: self.headers, body: body.freeze() })
    }
}
