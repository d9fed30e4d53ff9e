//! Which path leads where. What is not named here is not reachable through the router: engines have
//! routes that put them to sleep or abort everything (engine contract §11.2).

use std::borrow::Cow;

use http::Method;

use crate::error::ClientError;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// To engines.
    Engine(Endpoint),
    /// `GET /health`: the process lives.
    Health,
    /// `GET /readyz`: requests can be served.
    Ready,
    /// `GET /status`: the fleet and the policies, for people and the demo proxy's tools.
    Status,
    /// `GET /metrics`.
    Metrics,
    /// `GET /version`.
    Version,
    /// The admin API.
    Admin(AdminCall),
}

/// A call of the admin API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminCall {
    /// `GET /instances`.
    List,
    /// `POST /instances`, as the EPD proxy takes it.
    Register,
    /// `DELETE /instances?url=…`, as the EPD proxy takes it.
    Unregister,
    /// `POST /instances/add`.
    Add,
    /// `POST /instances/remove`.
    Remove,
    /// `POST /instances/drain`: nothing new is sent there.
    Drain,
    /// `POST /instances/resume`.
    Resume,
    /// POST of one of the paths that go to every engine.
    FanOut(&'static str),
}

/// An endpoint that engines serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// For metrics: from a fixed set.
    name: &'static str,
    /// Path on the engine.
    path: Cow<'static, str>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Prefill, then decode.
    TwoLegs,
    /// One engine that decodes and answers with tokens; a JSON body.
    OneLeg,
    /// One engine, which answers with something else; a JSON body.
    OneEngine,
    /// One engine; any body or none.
    Any,
}

impl Endpoint {
    /// Path on the engine.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Label in metrics.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether its body is a JSON object.
    pub fn takes_json(&self) -> bool {
        self.kind != Kind::Any
    }

    /// Whether it deals with responses that their engine keeps.
    pub fn is_stateful(&self) -> bool {
        self.name.starts_with(RESPONSES)
    }

    /// The stored response that it is about.
    pub fn response_id(&self) -> Option<&str> {
        self.path
            .strip_prefix(RESPONSES)?
            .strip_prefix('/')?
            .split('/')
            .next()
            .filter(|_| self.kind == Kind::Any)
    }

    /// Whether its answer is made of tokens.
    pub fn generates(&self) -> bool {
        matches!(self.kind, Kind::TwoLegs | Kind::OneLeg)
    }

    /// Whether it is about all instances at once.
    pub fn lists_models(&self) -> bool {
        self.name == MODELS
    }

    /// Whether it needs a tokeniser and no model, so that a renderer can serve it.
    pub fn renders(&self) -> bool {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        matches!(last, "render" | "derender" | "tokenize" | "detokenize")
    }

    /// Whether it can run on two legs.
    pub fn two_legs(&self) -> bool {
        self.kind == Kind::TwoLegs
    }
}

const MODELS: &str = "/v1/models";
const RESPONSES: &str = "/v1/responses";

const POST: &[Method] = &[Method::POST];
const GET: &[Method] = &[Method::GET, Method::HEAD];
const INSTANCES: &[Method] = &[Method::GET, Method::HEAD, Method::POST, Method::DELETE];

/// Engine endpoints, with the methods that they take.
const ENDPOINTS: &[(&str, &[Method], Kind)] = &[
    ("/v1/chat/completions", POST, Kind::TwoLegs),
    ("/v1/completions", POST, Kind::TwoLegs),
    ("/v1/messages", POST, Kind::OneLeg),
    ("/v1/messages/count_tokens", POST, Kind::OneEngine),
    ("/v1/responses", POST, Kind::OneLeg),
    ("/cohere/v2/chat", POST, Kind::OneLeg),
    ("/v1/chat/completions/batch", POST, Kind::OneLeg),
    ("/v1/chat/completions/render", POST, Kind::OneEngine),
    ("/v1/completions/render", POST, Kind::OneEngine),
    ("/v1/messages/render", POST, Kind::OneEngine),
    ("/v1/responses/render", POST, Kind::OneEngine),
    ("/v1/chat/completions/derender", POST, Kind::OneEngine),
    ("/v1/completions/derender", POST, Kind::OneEngine),
    ("/inference/v1/generate", POST, Kind::TwoLegs),
    ("/tokenize", POST, Kind::OneEngine),
    ("/detokenize", POST, Kind::OneEngine),
    ("/v1/embeddings", POST, Kind::OneEngine),
    ("/v2/embed", POST, Kind::OneEngine),
    ("/score", POST, Kind::OneEngine),
    ("/v1/score", POST, Kind::OneEngine),
    ("/rerank", POST, Kind::OneEngine),
    ("/v1/rerank", POST, Kind::OneEngine),
    ("/v2/rerank", POST, Kind::OneEngine),
    ("/classify", POST, Kind::OneEngine),
    ("/pooling", POST, Kind::OneEngine),
    ("/v1/audio/transcriptions", POST, Kind::Any),
    ("/v1/audio/translations", POST, Kind::Any),
    (MODELS, GET, Kind::Any),
    ("/tokenizer_info", GET, Kind::Any),
];

/// Finds the route. One trailing slash is ignored.
///
/// # Errors
/// 404 for paths that are not served, 405 for methods that a path does not take.
pub fn route(method: &Method, path: &str) -> Result<Route, ClientError> {
    let path = match path.strip_suffix('/') {
        Some(shorter) if !shorter.is_empty() => shorter,
        _ => path,
    };
    if let Some((name, methods, kind)) = ENDPOINTS.iter().find(|(name, ..)| *name == path) {
        return allow(
            method,
            methods,
            Route::Engine(Endpoint { name, path: Cow::Borrowed(name), kind: *kind }),
        );
    }
    if let Some((name, methods)) = stored_response(path) {
        let endpoint = Endpoint { name, path: Cow::Owned(path.to_owned()), kind: Kind::Any };
        return allow(method, methods, Route::Engine(endpoint));
    }
    if let Some(everywhere) = super::fanout::PATHS.into_iter().find(|p| *p == path) {
        return allow(method, POST, Route::Admin(AdminCall::FanOut(everywhere)));
    }
    match path {
        // SageMaker pings with either.
        "/ping" => allow(method, &[Method::GET, Method::HEAD, Method::POST], Route::Health),
        "/health" => allow(method, GET, Route::Health),
        "/readyz" => allow(method, GET, Route::Ready),
        "/status" => allow(method, GET, Route::Status),
        "/metrics" => allow(method, GET, Route::Metrics),
        "/version" => allow(method, GET, Route::Version),
        "/instances" => match *method {
            Method::POST => Ok(Route::Admin(AdminCall::Register)),
            Method::DELETE => Ok(Route::Admin(AdminCall::Unregister)),
            _ => allow(method, INSTANCES, Route::Admin(AdminCall::List)),
        },
        "/instances/add" => allow(method, POST, Route::Admin(AdminCall::Add)),
        "/instances/remove" => allow(method, POST, Route::Admin(AdminCall::Remove)),
        "/instances/drain" => allow(method, POST, Route::Admin(AdminCall::Drain)),
        "/instances/resume" => allow(method, POST, Route::Admin(AdminCall::Resume)),
        _ => Err(ClientError::NotFound(path.chars().take(128).collect())),
    }
}

/// `/v1/responses/{id}` and `/v1/responses/{id}/cancel`.
fn stored_response(path: &str) -> Option<(&'static str, &'static [Method])> {
    let rest = path.strip_prefix(RESPONSES)?.strip_prefix('/')?;
    let sane = |id: &str| {
        id.starts_with("resp_") && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    match rest.split_once('/') {
        None if sane(rest) => Some(("/v1/responses/{id}", GET)),
        Some((id, "cancel")) if sane(id) => Some(("/v1/responses/{id}/cancel", POST)),
        _ => None,
    }
}

fn allow(method: &Method, methods: &[Method], route: Route) -> Result<Route, ClientError> {
    if methods.contains(method) {
        return Ok(route);
    }
    let allow = match methods {
        [Method::POST] => "POST",
        [Method::GET, Method::HEAD] => "GET, HEAD",
        [_, _, _, Method::DELETE] => "GET, HEAD, POST, DELETE",
        _ => "GET, HEAD, POST",
    };
    Err(ClientError::Method { allow })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(path: &str) -> Option<Endpoint> {
        match route(&Method::POST, path) {
            Ok(Route::Engine(endpoint)) => Some(endpoint),
            _ => None,
        }
    }

    #[test]
    fn a_trailing_slash_makes_no_difference() {
        assert_eq!(endpoint("/v1/chat/completions/"), endpoint("/v1/chat/completions"));
        assert!(endpoint("/v1/completions").unwrap().two_legs());
        assert!(!endpoint("/v1/embeddings").unwrap().two_legs());
    }

    #[test]
    fn what_renderers_serve() {
        for path in ["/v1/chat/completions/render", "/v1/completions/derender", "/tokenize", "/detokenize"] {
            assert!(endpoint(path).unwrap().renders(), "{path}");
        }
        for path in ["/v1/chat/completions", "/inference/v1/generate", "/v1/messages/count_tokens"] {
            assert!(!endpoint(path).unwrap().renders(), "{path}");
        }
    }

    #[test]
    fn stored_responses_are_found_by_their_id() {
        let get = |path: &str| match route(&Method::GET, path) {
            Ok(Route::Engine(endpoint)) => endpoint.response_id().map(str::to_owned),
            _ => None,
        };
        assert_eq!(get("/v1/responses/resp_1f").as_deref(), Some("resp_1f"));
        assert_eq!(get("/v1/responses/resp_1f/cancel"), None);
        assert_eq!(endpoint("/v1/responses/resp_1f/cancel").unwrap().response_id(), Some("resp_1f"));
        assert_eq!(endpoint("/v1/responses").unwrap().response_id(), None);
        assert_eq!(endpoint("/v1/responses/render").unwrap().response_id(), None);
        for path in ["/v1/responses/../sleep", "/v1/responses/resp_a/b", "/v1/responses/other"] {
            assert_eq!(get(path), None, "{path}");
        }
    }

    #[test]
    fn dangerous_engine_routes_are_not_there() {
        for path in [
            "/sleep",
            "/abort_requests",
            "/inference/v1/abort_requests",
            "/collective_rpc",
            "/server_info",
            "/",
            "//",
        ] {
            assert!(matches!(route(&Method::POST, path), Err(ClientError::NotFound(_))), "{path}");
        }
    }

    #[test]
    fn wrong_methods_are_told_the_right_ones() {
        for (method, path, right) in [
            (Method::GET, "/v1/completions", "POST"),
            (Method::OPTIONS, "/v1/chat/completions", "POST"),
            (Method::POST, "/v1/models", "GET, HEAD"),
            (Method::PUT, "/instances", "GET, HEAD, POST, DELETE"),
        ] {
            assert!(matches!(route(&method, path), Err(ClientError::Method { allow }) if allow == right));
        }
        assert!(route(&Method::HEAD, "/v1/models").is_ok());
    }
}
