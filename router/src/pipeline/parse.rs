//! Takes the client's request in: reads it, checks what the router must know, and decides whether it
//! can run on two legs.

use std::sync::Arc;

use bytes::Bytes;
use edge_router_policy::{InstanceId, Phase};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use hyper::body::Incoming;
use serde_json::value::RawValue;

use super::derender::WayBack;
use super::encode;
use super::headers::{X_DATA_PARALLEL_RANK, X_REQUEST_ID, for_engines};
use super::readback::OwnTurn;
use crate::app::App;
use crate::body::media::MediaItem;
use crate::body::private::without_further_private_fields;
use crate::body::read::{ReadError, read_capped};
use crate::body::scan::Object;
use crate::error::{ClientError, Error};
use crate::policy::ClientRequest;
use crate::server::route::Endpoint;

/// Takes token ids instead of text.
pub(super) const GENERATE: &str = "/inference/v1/generate";

/// A request that can be sent to engines.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) client: Arc<ClientRequest>,
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// The client's headers, as far as engines get them.
    pub(super) headers: HeaderMap,
    /// A body that is not JSON, sent as it is.
    pub(super) raw: Option<Bytes>,
    pub(super) two_legs: bool,
    /// Whether a renderer can serve it.
    pub(super) renders: bool,
    /// How its answer is turned back, where its legs run on token ids in place of the client's words.
    pub(super) way_back: Option<Arc<WayBack>>,
    /// Whether it is answered with tokens, for which the prompt's KV cache is computed.
    pub(super) generates: bool,
    /// Whether its engine keeps what it answers.
    pub(super) stateful: bool,
    /// The only instance that can serve it: the one that made the response it is about.
    pub(super) pinned: Option<InstanceId>,
    /// What encoders are to encode.
    pub(super) media: Vec<MediaItem>,
    /// The conversation's turn that it is, where KV caches are read back.
    pub(super) turn: Option<OwnTurn>,
}

impl Parsed {
    /// The headers of a leg that engines know as `id`, on this data-parallel rank if it is pinned to one.
    pub(super) fn headers_of_leg(&self, id: &str, dp_rank: Option<u32>) -> HeaderMap {
        let mut headers = self.headers.clone();
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(X_REQUEST_ID, id);
        }
        if let Some(rank) = dp_rank {
            headers.insert(X_DATA_PARALLEL_RANK, HeaderValue::from(rank));
        }
        headers
    }
}

pub(super) async fn parse(
    app: &App,
    endpoint: &Endpoint,
    request: Request<Incoming>,
) -> Result<Parsed, Error> {
    let (head, body) = request.into_parts();
    let is_json = endpoint.takes_json() && head.method == Method::POST;
    if is_json {
        check_media_type(&head.headers)?;
    }
    check_encoding(&head.headers)?;
    let read = tokio::time::timeout(app.config.timeouts.client_body, read_capped(body, app.config.max_body));
    let bytes = match read.await {
        Err(_) => return Err(ClientError::TooSlow.into()),
        Ok(Err(ReadError::TooLarge { limit })) => return Err(ClientError::TooLarge { limit }.into()),
        Ok(Err(ReadError::Transport(_))) => return Err(ClientError::Incomplete.into()),
        Ok(Ok(bytes)) => bytes,
    };
    let (object, raw) = if is_json {
        (without_further_private_fields(Object::scan(bytes).map_err(ClientError::from)?), None)
    } else {
        (Object::empty(), Some(bytes))
    };
    let two_legs = endpoint.two_legs() && !runs_alone(endpoint.path(), &object);
    let pinned = home(app, endpoint, &object)?;
    let media = encode::media(app, endpoint, &object)?;
    let client = ClientRequest::new(
        endpoint.path().to_owned(),
        head.headers,
        object,
        app.config.prefix_block_tokens,
        Arc::clone(&app.config.session_keys),
    );
    let turn = two_legs.then(|| OwnTurn::of(app, &client)).flatten();
    Ok(Parsed {
        // HEAD is answered by the engine's GET; the server leaves the body out.
        method: if head.method == Method::HEAD { Method::GET } else { head.method },
        uri: engine_uri(&head.uri, endpoint),
        headers: for_engines(&client.headers, app.config.engine_auth.as_ref()),
        client: Arc::new(client),
        turn,
        renders: endpoint.renders(),
        way_back: None,
        media,
        generates: endpoint.generates(),
        stateful: endpoint.is_stateful(),
        pinned,
        raw,
        two_legs,
    })
}

/// The instance that made the stored response which the request asks for or goes on from.
fn home(app: &App, endpoint: &Endpoint, object: &Object) -> Result<Option<InstanceId>, ClientError> {
    if let Some(id) = endpoint.response_id() {
        let snapshot = app.fleet.snapshot();
        // What an instance that has left kept is gone with it.
        let found = app.homes.find(id).filter(|home| snapshot.get(*home).is_some());
        let the_only_one = || snapshot.serving(Phase::Decode).count() == 1;
        if found.is_none() && !the_only_one() {
            return Err(ClientError::Unknown(format!("response {id} is not known here")));
        }
        return Ok(found);
    }
    // An engine that does not know the response says so.
    let previous = object.get_str("previous_response_id").filter(|_| endpoint.is_stateful());
    Ok(previous.and_then(|id| app.homes.find(&id)))
}

/// JSON in any of its spellings, or no type at all: then the body tells.
fn check_media_type(headers: &HeaderMap) -> Result<(), ClientError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let is_json =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json { Ok(()) } else { Err(ClientError::MediaType) }
}

fn check_encoding(headers: &HeaderMap) -> Result<(), ClientError> {
    match headers.get(CONTENT_ENCODING).map(|v| v.as_bytes().to_ascii_lowercase()) {
        Some(coding) if coding != b"identity" && !coding.is_empty() => Err(ClientError::Encoding),
        _ => Ok(()),
    }
}

/// Path without a trailing slash, and the client's query.
fn engine_uri(client: &Uri, endpoint: &Endpoint) -> Uri {
    let path = match client.query() {
        Some(query) => format!("{}?{query}", endpoint.path()),
        None => endpoint.path().to_owned(),
    };
    Uri::try_from(path).unwrap_or_else(|_| client.clone())
}

/// Whether a request must run on one engine. Where the prompt comes as token ids, the sampling
/// parameters are an object of their own.
pub(super) fn runs_alone(path: &str, object: &Object) -> bool {
    let sampling = object.get("sampling_params").filter(|_| path == GENERATE);
    let sampling = sampling.and_then(|text| Object::scan(object.bytes().slice_ref(text.as_bytes())).ok());
    needs_one_engine(object).is_some() || sampling.as_ref().is_some_and(|s| needs_one_engine(s).is_some())
}

/// Why a request must run on one engine alone, if it must (engine contract §9): its answer holds more
/// than one continuation, all of which would be given the same KV blocks, or needs the prompt's logits,
/// which only the engine that ran the prompt has.
pub(super) fn needs_one_engine(object: &Object) -> Option<&'static str> {
    let above_one = |name| number(object, name).is_some_and(|n| n > 1.0);
    if above_one("n") || above_one("best_of") {
        return Some("several continuations");
    }
    if object.is_truthy("use_beam_search") {
        return Some("beam search");
    }
    if object.is_truthy("echo") || object.is_set("prompt_logprobs") {
        return Some("prompt logprobs or echo");
    }
    if object.is_set("prompt_embeds") {
        return Some("prompt embeddings");
    }
    // Refused by the engines, except to echo a prompt: nothing to prefill for.
    if ["max_tokens", "max_completion_tokens"].iter().any(|name| number(object, name) == Some(0.0)) {
        return Some("no tokens wanted");
    }
    object.get("prompt").is_some_and(|prompt| prompts(prompt) > 1).then_some("several prompts")
}

/// The field as the engines read a number: `"2"` counts for 2 there.
pub(super) fn number(object: &Object, name: &str) -> Option<f64> {
    match object.get_str(name) {
        Some(text) => text.trim().parse().ok(),
        None => object.get(name)?.parse().ok(),
    }
}

/// How many prompts the `prompt` field holds. A flat list of token ids is one.
pub(super) fn prompts(prompt: &str) -> usize {
    let Some(inner) = prompt.strip_prefix('[').map(str::trim_start) else { return 1 };
    if !inner.starts_with(['"', '[']) {
        return 1;
    }
    serde_json::from_str::<Vec<&RawValue>>(prompt).map_or(1, |list| list.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(body: &str) -> bool {
        needs_one_engine(&Object::scan(Bytes::copy_from_slice(body.as_bytes())).unwrap()).is_some()
    }

    #[test]
    fn features_that_two_legs_would_break() {
        for body in [
            r#"{"n":2}"#,
            r#"{"n":2.0}"#,
            r#"{"n":"2"}"#,
            r#"{"best_of":" 3 "}"#,
            r#"{"max_tokens":"0"}"#,
            r#"{"max_completion_tokens":0.0}"#,
            r#"{"best_of":3}"#,
            r#"{"use_beam_search":true}"#,
            r#"{"echo":true}"#,
            r#"{"prompt_logprobs":0}"#,
            r#"{"prompt_embeds":"abc"}"#,
            r#"{"prompt":["a","b"]}"#,
            r#"{"prompt":[ [1,2],[3]]}"#,
            r#"{"max_tokens":0,"prompt":"a"}"#,
        ] {
            assert!(alone(body), "{body}");
        }
    }

    #[test]
    fn everything_else_runs_on_two() {
        for body in [
            r#"{"n":1,"best_of":1,"echo":false,"prompt_logprobs":null}"#,
            r#"{"prompt":[1,2,3]}"#,
            r#"{"prompt":["only one"]}"#,
            r#"{"logprobs":2,"max_tokens":1}"#,
            r#"{"n":null,"use_beam_search":false,"prompt_embeds":null}"#,
        ] {
            assert!(!alone(body), "{body}");
        }
    }

    #[test]
    fn token_ids_have_their_features_in_an_object() {
        let body = r#"{"token_ids":[1],"sampling_params":{"n":2}}"#;
        let object = Object::scan(Bytes::from_static(body.as_bytes())).unwrap();
        assert!(runs_alone("/inference/v1/generate", &object));
        assert!(!runs_alone("/v1/completions", &object));
    }

    #[test]
    fn media_types() {
        let check = |value: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            check_media_type(&headers).is_ok()
        };
        for good in [
            "application/json",
            "application/json; charset=utf-8",
            "Application/JSON",
            "application/vnd.api+json",
        ] {
            assert!(check(good), "{good}");
        }
        for bad in ["text/plain", "multipart/form-data; boundary=x", "json", ""] {
            assert!(!check(bad), "{bad}");
        }
        assert!(check_media_type(&HeaderMap::new()).is_ok());
    }
}
