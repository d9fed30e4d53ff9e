//! The only place where errors become HTTP.
//!
//! Clients get OpenAI's error object. It names no address and no cause inside the fleet: these are in
//! the operator's log, under the same request id.

use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use super::render::RenderError;
use super::{ClientError, Error, Unavailable};
use crate::body::scan::ScanError;

/// Seconds after which a client should try again when no instance was free.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

impl Error {
    /// Status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Client(error) => error.status(),
            Self::Render(error) => error.status(),
            Self::NoInstance { .. } | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::Stalled { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Leg { source, .. } if source.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
            Self::Leg { .. } | Self::Refused { .. } | Self::Cut { .. } | Self::Malformed { .. } => {
                StatusCode::BAD_GATEWAY
            }
        }
    }

    /// `error.code`: stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Client(error) => error.code(),
            Self::Render(error) => error.code(),
            Self::NoInstance { why: Unavailable::Saturated, .. } => "instances_saturated",
            Self::NoInstance { .. } => "no_instance",
            Self::Stalled { .. } => "engine_timeout",
            Self::Leg { source, .. } if source.is_timeout() => "engine_timeout",
            Self::Leg { .. } => "engine_unreachable",
            Self::Refused { .. } => "engine_failed",
            Self::Cut { .. } => "engine_answer_cut",
            Self::Malformed { .. } => "engine_answer_malformed",
            Self::ShuttingDown => "shutting_down",
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Client(ClientError::Forbidden(_)) => "permission_error",
            Self::Client(ClientError::NotFound(_)) => "not_found_error",
            Self::Client(_) => "invalid_request_error",
            Self::Render(error) => error.kind(),
            Self::NoInstance { .. } | Self::ShuttingDown => "service_unavailable_error",
            Self::Leg { .. }
            | Self::Refused { .. }
            | Self::Cut { .. }
            | Self::Malformed { .. }
            | Self::Stalled { .. } => "engine_error",
        }
    }

    /// The answer's body.
    pub fn json(&self) -> String {
        let error = serde_json::json!({
            "message": self.to_string(), "type": self.kind(), "param": null, "code": self.code(),
        });
        serde_json::json!({ "error": error }).to_string()
    }

    /// The whole answer.
    pub fn response(&self) -> Response<String> {
        let mut response = Response::new(self.json());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self {
            Self::NoInstance { .. } | Self::Render(RenderError::NoInstance(_)) | Self::ShuttingDown => {
                headers.insert(RETRY_AFTER, RETRY_SECONDS);
            }
            Self::Client(ClientError::Method { allow }) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            _ => {}
        }
        response
    }
}

impl ClientError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Body(_) | Self::Incomplete | Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType | Self::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotFound(_) | Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Body(ScanError::Syntax(_)) => "invalid_json",
            Self::Body(ScanError::NotAnObject) => "not_an_object",
            Self::Incomplete => "incomplete_body",
            Self::TooSlow => "body_too_slow",
            Self::TooLarge { .. } => "body_too_large",
            Self::MediaType => "unsupported_media_type",
            Self::Encoding => "unsupported_encoding",
            Self::NotFound(_) => "not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::Forbidden(_) => "forbidden",
            Self::Invalid(_) => "invalid_request",
            Self::Conflict(_) => "conflict",
            Self::Unknown(_) => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use edge_router_policy::Phase;

    use super::*;

    #[test]
    fn the_answer_is_openais_error_object() {
        let error = Error::NoInstance { phase: Phase::Decode, why: Unavailable::Unhealthy };
        let response = error.response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        let body: serde_json::Value = serde_json::from_str(response.body()).unwrap();
        assert_eq!(body["error"]["message"], "no decode instance is available: none is healthy");
        assert_eq!(body["error"]["type"], "service_unavailable_error");
        assert_eq!(body["error"]["code"], "no_instance");
        assert!(body["error"]["param"].is_null());
    }
}
