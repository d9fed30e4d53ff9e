//! What an engine answers where it deals in token ids: as a renderer, with `--tokens-only`, or not at all.
//! Exchanged with vLLM 0.32 by hand; its words are kept.

mod derender;
mod render;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;

use super::body::SimBody;
use super::call::Endpoint;
use super::config::{Config, Role};
use super::rejection::{Rejection, json_response};
use super::route::detail;

const DISABLED: &str =
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
const NO_TOKENIZER: &str = "Tokenizer not available when `skip_tokenizer_init=True`";
const NO_STOP_STRINGS: &str = "stop strings are not supported on a --tokens-only server because detokenization is \
    disabled. Check stop strings on the coordinator, or use stop_token_ids.";

/// The answer, if it is another than that of an engine that takes text and tokens.
pub(crate) fn answer(
    config: &Config,
    path: &str,
    headers: &HeaderMap,
    body: &Bytes,
) -> Option<Response<SimBody>> {
    let renders = path.ends_with("/render") || path.ends_with("/derender");
    let generates = Endpoint::of(path);
    let refuse = |status, kind, message: &str| Some(Rejection::new(status, kind, message).respond());
    if !config.scale_out && (renders || generates == Some(Endpoint::Generate)) {
        return refuse(StatusCode::FORBIDDEN, "PermissionDeniedError", DISABLED);
    }
    if config.role == Role::Render && generates.is_some() {
        return Some(detail(StatusCode::NOT_FOUND, "Not Found"));
    }
    if config.tokens_only {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let given =
            |pointer| body.pointer(pointer).is_some_and(|value| *value != Value::from(Vec::<u8>::new()));
        return match generates {
            Some(Endpoint::Generate) if given("/sampling_params/stop") => {
                refuse(StatusCode::BAD_REQUEST, "BadRequestError", NO_STOP_STRINGS)
            }
            Some(Endpoint::Chat | Endpoint::Messages) => {
                refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", "")
            }
            Some(Endpoint::Completions) if !body["prompt"].is_array() => {
                refuse(StatusCode::BAD_REQUEST, "BadRequestError", NO_TOKENIZER)
            }
            None if renders || path.ends_with("tokenize") => {
                refuse(StatusCode::BAD_REQUEST, "BadRequestError", NO_TOKENIZER)
            }
            _ => None,
        };
    }
    let result = match path {
        "/v1/chat/completions/render" => render::render(config, Endpoint::Chat, headers, body),
        "/v1/completions/render" => render::render(config, Endpoint::Completions, headers, body),
        "/v1/messages/render" => render::render(config, Endpoint::Messages, headers, body),
        "/v1/responses/render" => render::responses(config, headers, body),
        "/v1/chat/completions/derender" => derender::derender(config, Endpoint::Chat, headers, body),
        "/v1/completions/derender" => derender::derender(config, Endpoint::Completions, headers, body),
        _ => return None,
    };
    Some(match result {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err(rejection) => rejection.respond(),
    })
}
