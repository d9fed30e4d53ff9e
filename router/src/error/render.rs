//! What can go wrong with a renderer.

use http::StatusCode;
use thiserror::Error;

use super::Unavailable;
use crate::upstream::SendError;

/// Why no renderer could do its part.
#[derive(Debug, Error)]
pub enum RenderError {
    /// No renderer can take it now.
    #[error("no render instance is available: {0}")]
    NoInstance(Unavailable),
    /// The last one that was asked could not be reached or gave no answer.
    #[error("render instance gave no answer")]
    Unanswered(#[source] SendError),
    /// The last one that was asked answered with an error that is not passed on.
    #[error("render instance answered {0}")]
    Refused(StatusCode),
    /// Its answer broke off before its end.
    #[error("answer of the render instance broke off")]
    Cut(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Its answer did not end in time.
    #[error("answer of the render instance did not end within {0:?}")]
    Stalled(std::time::Duration),
    /// It answered with something that can't be gone on with.
    #[error("answer of the render instance can't be used: {0}")]
    Unusable(&'static str),
}

impl RenderError {
    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Stalled(_) => true,
            Self::Unanswered(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Status of the answer to the client.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NoInstance(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ if self.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// `error.code` of the answer.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::NoInstance(Unavailable::Saturated) => "render_saturated",
            Self::NoInstance(_) => "no_render_instance",
            _ if self.is_timeout() => "render_timeout",
            Self::Unanswered(_) => "render_unreachable",
            Self::Refused(_) | Self::Unusable(_) => "render_failed",
            Self::Cut(_) | Self::Stalled(_) => "render_answer_cut",
        }
    }

    /// `error.type` of the answer.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::NoInstance(_) => "service_unavailable_error",
            _ => "engine_error",
        }
    }
}
