//! Error answers, in the words and the shape of vLLM's (see `tests/fixtures/captures/err-*`).

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use super::body::{SimBody, full};

/// A refused or failed request.
#[derive(Clone, Debug)]
pub(crate) struct Rejection {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    /// Whether the handler refused the request itself: only that frees the prefill which the request names.
    pub(crate) by_handler: bool,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: u16,
}

impl Rejection {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let by_handler = status.is_client_error();
        Self { status, kind, message: message.into(), param: None, by_handler }
    }

    /// 400 by the handler.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    /// 400 about a field, whose name and value end the message.
    pub(crate) fn bad_field(param: &str, message: &str, value: Option<&str>) -> Self {
        let value = value.map(|value| format!(", value={value}")).unwrap_or_default();
        Self::bad_request(format!("{message} (parameter={param}{value})")).about(param)
    }

    /// 400 by the validation that runs before the handler.
    pub(crate) fn invalid(detail: &str, param: Option<&str>) -> Self {
        let message = format!("1 validation error:\n  {detail}");
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, "Bad Request", message);
        rejection.param = param.map(str::to_owned);
        rejection.by_handler = false;
        rejection
    }

    pub(crate) fn no_such_model(wanted: &str, served: &str) -> Self {
        let message = format!("The model `{wanted}` does not exist. Valid aliases: {served}.");
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message).about("model")
    }

    pub(crate) fn overloaded(queued: usize) -> Self {
        let message = format!("The engine already has {queued} requests waiting.");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", message)
    }

    /// What a failed KV load becomes.
    pub(crate) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", "Internal server error")
    }

    /// What a dead engine core becomes, while its server is still up.
    pub(crate) fn engine_dead() -> Self {
        let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message)
    }

    fn about(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// As a response of its own.
    pub(crate) fn respond(&self) -> Response<SimBody> {
        json_response(self.status, &self.envelope())
    }

    /// As the data of an event, with the spaces that Python's `json.dumps` puts there.
    pub(crate) fn event(&self) -> String {
        let (message, kind, param) = (json!(self.message), json!(self.kind), json!(self.param));
        let code = self.status.as_u16();
        format!(r#"{{"error": {{"message": {message}, "type": {kind}, "param": {param}, "code": {code}}}}}"#)
    }

    fn envelope(&self) -> Envelope<'_> {
        Envelope {
            error: Error {
                message: &self.message,
                r#type: self.kind,
                param: self.param.as_deref(),
                code: self.status.as_u16(),
            },
        }
    }
}

/// A JSON answer with the headers of uvicorn and vLLM's middleware.
pub(crate) fn json_response(status: StatusCode, value: &impl Serialize) -> Response<SimBody> {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
