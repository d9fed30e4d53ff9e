//! What an engine answers at which path.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::body::{SimBody, full};
use super::call::Endpoint;
use super::config::Config;
use super::encoder::Encodings;
use super::fault::{Before, Faults, Outcome, Plan, Step, Verdict, loses, shape};
use super::inference::infer;
use super::journal::{End, Journal};
use super::rank::Rank;
use super::rejection::json_response;
use super::server::Activity;
use super::violations::Violations;
use super::{control, metrics, models, scale_out};

/// All that the server of one process needs.
pub(crate) struct Service {
    pub(crate) config: Arc<Config>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) violations: Arc<Violations>,
    pub(crate) encodings: Arc<Encodings>,
    pub(crate) address: SocketAddr,
    pub(crate) ranks: Arc<[Arc<Rank>]>,
    pub(crate) dead: watch::Receiver<bool>,
}

/// Closes the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("closed by a simulated fault")]
pub(crate) struct Closed;

impl Service {
    /// Answers one request; `activity` is of its connection.
    pub(crate) async fn call(
        &self,
        request: Request<Incoming>,
        activity: watch::Sender<Activity>,
    ) -> Result<Response<SimBody>, Closed> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        if path.starts_with("/sim/") {
            return Ok(control::answer(self, &parts.method, &path, &read(body).await));
        }
        let mut entry = self.journal.open(&parts, activity);
        let body = read(body).await;
        entry.body(&body);
        let plan = self.faults.plan(step(&path, &body), &path);
        let Plan { before, wire, outcome } = plan;
        let mut response = match self.verdict(&before).await {
            Verdict::Close => {
                entry.end(End::Cut);
                return Err(Closed);
            }
            Verdict::Answer(response) => response,
            Verdict::Proceed => self.answer(&parts, &path, &body, &outcome).await,
        };
        if loses(&wire, response.body_mut()).await {
            entry.end(End::Cut);
            return Err(Closed);
        }
        for fault in wire {
            response = response.map(|body| shape(body, fault));
        }
        let headers = response.headers_mut();
        headers.insert(header::SERVER, HeaderValue::from_static("uvicorn"));
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        Ok(entry.follow(response))
    }

    async fn verdict(&self, faults: &[Before]) -> Verdict {
        for fault in faults {
            match fault.apply(&self.faults).await {
                Verdict::Proceed => {}
                verdict => return verdict,
            }
        }
        Verdict::Proceed
    }

    async fn answer(
        &self,
        parts: &Parts,
        path: &str,
        body: &Bytes,
        outcome: &[Outcome],
    ) -> Response<SimBody> {
        let posts = parts.method == Method::POST;
        let guarded = path.starts_with("/v1/") || path.starts_with("/inference/");
        if posts && guarded && !self.authorized(&parts.headers) {
            return unauthorized();
        }
        if let Some(response) = scale_out::answer(&self.config, path, &parts.headers, body).filter(|_| posts)
        {
            return response;
        }
        match Endpoint::of(path).filter(|_| posts) {
            Some(endpoint) => infer(self, endpoint, &parts.headers, body, outcome).await,
            None => self.other(&parts.method, path, &parts.headers, body),
        }
    }

    fn other(&self, method: &Method, path: &str, headers: &HeaderMap, body: &Bytes) -> Response<SimBody> {
        let allowed: &[Method] = match path {
            "/health" | "/version" | "/metrics" | "/load" | "/v1/models" => &[Method::GET],
            "/ping" => &[Method::GET, Method::POST],
            "/tokenize" | "/detokenize" => &[Method::POST],
            _ if Endpoint::of(path).is_some() => &[Method::POST],
            _ => return detail(StatusCode::NOT_FOUND, "Not Found"),
        };
        if !allowed.contains(method) {
            let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            if let Some(Ok(allow)) = allowed.first().map(|method| HeaderValue::from_str(method.as_str())) {
                response.headers_mut().insert(header::ALLOW, allow);
            }
            return response;
        }
        if path.starts_with("/v1/") && !self.authorized(headers) {
            return unauthorized();
        }
        match path {
            "/health" | "/ping" => self.health(),
            "/version" => json_response(StatusCode::OK, &json!({ "version": "0.32.0" })),
            "/load" => json_response(StatusCode::OK, &json!({ "server_load": 0 })),
            "/metrics" => self.metrics(),
            "/v1/models" => models::list(&self.config),
            "/tokenize" => models::tokenize(&self.config, headers, body),
            _ => models::detokenize(headers, body),
        }
    }

    fn health(&self) -> Response<SimBody> {
        let mut response = Response::new(full(Bytes::new()));
        if *self.dead.borrow() {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }

    fn metrics(&self) -> Response<SimBody> {
        let mut response = Response::new(full(metrics::render(&self.ranks, &self.config.model)));
        let content_type = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }

    fn authorized(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.config.api_key else { return true };
        headers
            .get(header::AUTHORIZATION)
            .is_some_and(|given| given.as_bytes() == format!("Bearer {key}").as_bytes())
    }
}

fn step(path: &str, body: &Bytes) -> Option<Step> {
    Endpoint::of(path)?;
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let asked = body.pointer("/kv_transfer_params/do_remote_decode").and_then(Value::as_bool);
    Some(if asked == Some(true) { Step::Prefill } else { Step::Decode })
}

/// Engines set no limit to a body; this one runs in tests only.
async fn read(mut body: Incoming) -> Bytes {
    let mut bytes = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    bytes.freeze()
}

pub(crate) fn detail(status: StatusCode, message: &str) -> Response<SimBody> {
    json_response(status, &json!({ "detail": message }))
}

fn unauthorized() -> Response<SimBody> {
    json_response(StatusCode::UNAUTHORIZED, &json!({ "error": "Unauthorized" }))
}
