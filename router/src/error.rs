//! What can go wrong with a request, by who is at fault. `respond` turns it into an answer.

pub mod render;
pub mod respond;

use edge_router_policy::Phase;
use thiserror::Error;

use self::render::RenderError;
use crate::body::scan::ScanError;
use crate::upstream::SendError;

/// Why a request could not be served.
#[derive(Debug, Error)]
pub enum Error {
    /// The client's fault.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No instance can take it now.
    #[error("no {} instance is available: {why}", phase_name(*.phase))]
    NoInstance {
        /// The phase that found none.
        phase: Phase,
        /// Why.
        why: Unavailable,
    },
    /// An engine could not be reached or gave no answer.
    #[error("{} leg failed", phase_name(*.phase))]
    Leg {
        /// The leg.
        phase: Phase,
        /// How.
        #[source]
        source: SendError,
    },
    /// An engine answered with an error of its own. Only where its answer is not passed on.
    #[error("{} instance answered {status}", phase_name(*.phase))]
    Refused {
        /// The leg.
        phase: Phase,
        /// The engine's status.
        status: http::StatusCode,
    },
    /// An engine's answer broke off before its end.
    #[error("answer of the {} instance broke off", phase_name(*.phase))]
    Cut {
        /// The leg.
        phase: Phase,
        /// How.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An engine has answered 200, with something that can't be used.
    #[error("answer of the {} instance makes no sense", phase_name(*.phase))]
    Malformed {
        /// The leg.
        phase: Phase,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An engine began to answer and then fell silent.
    #[error("answer of the {} instance did not end within {after:?}", phase_name(*.phase))]
    Stalled {
        /// The leg.
        phase: Phase,
        /// The limit.
        after: std::time::Duration,
    },
    /// No renderer could do its part.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The router is being shut down.
    #[error("router is shutting down")]
    ShuttingDown,
}

/// Why there is no instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// None was configured or announced.
    #[error("none is known")]
    None,
    /// There are some, none of them healthy.
    #[error("none is healthy")]
    Unhealthy,
    /// Those that are healthy are being drained.
    #[error("all that are healthy are being drained")]
    Draining,
    /// All healthy ones have as much as they may have.
    #[error("all are at their limit")]
    Saturated,
    /// All that there are have failed this request.
    #[error("all have been tried")]
    Tried,
}

/// What a client did wrong.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The body is not a JSON object.
    #[error(transparent)]
    Body(#[from] ScanError),
    /// The body ended early.
    #[error("body ended before its declared length")]
    Incomplete,
    /// The body did not arrive in time.
    #[error("body did not arrive in time")]
    TooSlow,
    /// The body is too large.
    #[error("body is larger than {limit} bytes, the limit of this router (--max-body-bytes)")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// `content-type` is not JSON.
    #[error("content type must be application/json")]
    MediaType,
    /// The body is compressed.
    #[error("content encoding is not supported; send the body uncompressed (identity)")]
    Encoding,
    /// No such path.
    #[error("no route for {0}")]
    NotFound(String),
    /// The path exists, with other methods.
    #[error("method is not allowed; use {allow}")]
    Method {
        /// For the `allow` header.
        allow: &'static str,
    },
    /// The admin key is missing or wrong.
    #[error("{0}")]
    Forbidden(&'static str),
    /// What is asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A request to the admin API that does not fit what there is.
    #[error("{0}")]
    Conflict(String),
    /// A request to the admin API about something that is not there.
    #[error("{0}")]
    Unknown(String),
}

/// `prefill` and so on.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Encode => "encode",
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}

/// An error and all its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors repeat their cause in their own text.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
