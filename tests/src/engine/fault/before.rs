//! Faults before the response's headers: late, refused, closed, or never.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::{Fault, Faults, Kind};
use crate::engine::body::{SimBody, full};
use crate::engine::rejection::Rejection;

/// What happens instead of, or before, the engine's own answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Before {
    Delay {
        ms: u64,
    },
    Status {
        code: u16,
        /// An error envelope with this status if there is none.
        #[serde(default)]
        body: Option<String>,
        #[serde(default)]
        headers: Vec<(String, String)>,
    },
    CloseBeforeHeaders {},
    Hang {},
    /// Until the faults are cleared.
    Hold {},
}

/// What becomes of the request.
pub(crate) enum Verdict {
    Proceed,
    Answer(Response<SimBody>),
    Close,
}

impl Before {
    /// Lets the fault happen, which was set among `faults`.
    pub(crate) async fn apply(&self, faults: &Faults) -> Verdict {
        match self {
            Self::Delay { ms } => {
                tokio::time::sleep(Duration::from_millis(*ms)).await;
                Verdict::Proceed
            }
            Self::Status { code, body, headers } => Verdict::Answer(answer(*code, body.as_deref(), headers)),
            Self::CloseBeforeHeaders {} => Verdict::Close,
            Self::Hang {} => std::future::pending().await,
            Self::Hold {} => {
                faults.cleared().await;
                Verdict::Proceed
            }
        }
    }
}

fn answer(code: u16, body: Option<&str>, headers: &[(String, String)]) -> Response<SimBody> {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = match body {
        Some(body) => Response::new(full(Bytes::copy_from_slice(body.as_bytes()))),
        None => Rejection::new(status, "SimulatedFault", "A fault that was set on the simulated engine.")
            .respond(),
    };
    *response.status_mut() = status;
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (name.parse::<http::HeaderName>(), value.parse()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

impl Fault {
    /// The answer comes `delay` later.
    pub fn delay(delay: Duration) -> Self {
        Self::new(Kind::Before(Before::Delay { ms: delay.as_millis() as u64 }))
    }

    /// The answer is this status, with an error envelope as body.
    pub fn status(code: u16) -> Self {
        Self::new(Kind::Before(Before::Status { code, body: None, headers: Vec::new() }))
    }

    /// With [`Fault::status`]: a further header, `retry-after` for example.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Kind::Before(Before::Status { headers, .. }) = &mut self.kind {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// With [`Fault::status`]: this body instead of an error envelope.
    pub fn json(mut self, value: &Value) -> Self {
        if let Kind::Before(Before::Status { body, .. }) = &mut self.kind {
            *body = Some(value.to_string());
        }
        self.header("content-type", "application/json")
    }

    /// With [`Fault::status`]: this text instead of an error envelope, JSON or not.
    pub fn body(mut self, content_type: &str, text: &str) -> Self {
        if let Kind::Before(Before::Status { body, .. }) = &mut self.kind {
            *body = Some(text.to_owned());
        }
        self.header("content-type", content_type)
    }

    /// The connection is closed without a response.
    pub fn close_before_headers() -> Self {
        Self::new(Kind::Before(Before::CloseBeforeHeaders {}))
    }

    /// There is no answer until the client goes away.
    pub fn hang() -> Self {
        Self::new(Kind::Before(Before::Hang {}))
    }

    /// The request goes no further until [`crate::engine::Engine::clear_faults`]; faults that were set after this one
    /// happen then.
    pub fn hold() -> Self {
        Self::new(Kind::Before(Before::Hold {}))
    }
}
