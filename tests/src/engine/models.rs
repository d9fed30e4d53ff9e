//! The endpoints about models and tokens, which generate nothing.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::unix_time;
use super::body::SimBody;
use super::config::Config;
use super::digest::random;
use super::fields::Fields;
use super::rejection::{Rejection, json_response};
use super::template::render;
use super::tokenizer;

/// `GET /v1/models`.
pub(crate) fn list(config: &Config) -> Response<SimBody> {
    let permission = json!({
        "id": format!("modelperm-{:016x}", random()), "object": "model_permission", "created": unix_time(),
        "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
        "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
        "group": null, "is_blocking": false,
    });
    let card = json!({
        "id": config.model, "object": "model", "created": unix_time(), "owned_by": "vllm",
        "root": format!("/models/{}", config.model), "parent": null, "max_model_len": config.max_model_len,
        "permission": [permission],
    });
    json_response(StatusCode::OK, &json!({ "object": "list", "data": [card] }))
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: (),
}

/// `POST /tokenize`, of a prompt or of a conversation.
pub(crate) fn tokenize(config: &Config, headers: &HeaderMap, body: &Bytes) -> Response<SimBody> {
    let tokens = Fields::parse(headers, body).and_then(|fields| match fields.list("messages")? {
        Some(messages) => Ok(tokenizer::tokenize(&render(messages, fields.get("tools")))),
        None => fields.text("prompt").map(tokenizer::tokenize).ok_or_else(|| fields.missing("prompt")),
    });
    answer(tokens.map(|tokens| Tokens {
        count: tokens.len(),
        max_model_len: config.max_model_len,
        tokens,
        token_strs: (),
    }))
}

/// `POST /detokenize`.
pub(crate) fn detokenize(headers: &HeaderMap, body: &Bytes) -> Response<SimBody> {
    let text = Fields::parse(headers, body).and_then(|fields| {
        let ids = fields.list("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
        let ids: Vec<u32> = ids.iter().filter_map(Value::as_u64).map(|id| id as u32).collect();
        Ok(json!({ "prompt": tokenizer::detokenize(&ids) }))
    });
    answer(text)
}

fn answer(result: Result<impl Serialize, Rejection>) -> Response<SimBody> {
    match result {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err(rejection) => rejection.respond(),
    }
}
