//! NIXL, pull and serial push: prefill is told to keep its KV cache for a
//! remote decode, answers with the coordinates, and decode gets these verbatim.
//!
//! Field names and rules follow vLLM 0.33 (`kv_connector/v1/nixl/`,
//! `entrypoints/openai/*/protocol.py`) and hold for the engines before it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{Leg, Request};

/// The field that tells prefill to keep its KV cache, and carries the
/// coordinates back and on to decode.
pub const KV_TRANSFER_PARAMS: &str = "kv_transfer_params";

/// Only `do_remote_decode` matters to prefill; the nulls are what the upstream
/// proxies send.
const KEEP_FOR_DECODE: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The endpoint that takes token ids instead of text.
const GENERATE: &str = "/inference/v1/generate";

/// Fields that prefill must not see: it is a 400 to give stream options to a
/// plain request, top logprobs without logprobs, or a minimum above the single
/// token that prefill may produce; prompt logprobs and echo cost a full pass;
/// and a stop at the first token can cost the KV cache.
const NOT_FOR_PREFILL: [&str; 10] = [
    "stream_options",
    "min_tokens",
    "min_completion_tokens",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "logprob_token_ids",
    "stop",
    "stop_token_ids",
];

/// The prefill leg: one token, not streamed, and the KV cache kept for decode.
///
/// What shapes the prompt (`messages`, `tools`, `chat_template`, `cache_salt`,
/// …) is left alone, so that both engines see the same one; so is
/// `response_format`, which some chat templates render.
pub fn prefill_leg(request: &Request<'_>) -> Leg {
    let leg = Leg::new().set(KV_TRANSFER_PARAMS, KEEP_FOR_DECODE).set("stream", "false");
    if request.endpoint() == GENERATE {
        return generate_leg(request, leg);
    }
    let mut leg = leg
        // Also where the client sent none: the default is 16, or the rest of
        // the context.
        .set("max_tokens", "1");
    // It wins over `max_tokens` on chat; completions need not know it.
    for one in ["max_completion_tokens", "n"] {
        if request.field(one).is_some() {
            leg = leg.set(one, "1");
        }
    }
    NOT_FOR_PREFILL.into_iter().fold(leg, Leg::remove)
}

/// The same for token ids: there the sampling parameters are an object of
/// their own, and the answer may be asked for as text.
fn generate_leg(request: &Request<'_>, leg: Leg) -> Leg {
    let mut leg = leg.remove("stream_options");
    if request.field("output_mode").is_some() {
        leg = leg.set("output_mode", "\"tokens\"");
    }
    match request.field("sampling_params").and_then(|params| one_token(&params)) {
        Some(params) => leg.set("sampling_params", params),
        // Prefill says what is wrong with them.
        None => leg,
    }
}

/// Sampling parameters that end after one token. What stays keeps its text.
fn one_token(params: &str) -> Option<String> {
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(params).ok()?;
    let one: &RawValue = serde_json::from_str("1").ok()?;
    for name in NOT_FOR_PREFILL {
        fields.remove(name);
    }
    fields.entry("n".into()).and_modify(|n| *n = one);
    fields.insert("max_tokens".into(), one);
    serde_json::to_string(&fields).ok()
}

/// The decode leg: the client's body and what prefill returned, byte for byte.
/// Where that is not [`usable`], the body goes as it is and decode computes the
/// prompt itself; half of the coordinates would make it fail or read foreign
/// blocks.
pub fn decode_leg(kv_params: Option<&str>) -> Leg {
    match kv_params {
        Some(params) if usable(params).is_ok() => Leg::new().set(KV_TRANSFER_PARAMS, params.to_owned()),
        _ => Leg::new(),
    }
}

/// Why decode could not fetch a KV cache with these params.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Not a JSON object, or a key of another type than the engines write.
    #[error("not the KV transfer params of NIXL: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A key that decode needs is absent or null.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// The params don't ask decode to fetch anything, such as those that a
    /// decode instance returns for the next turn.
    #[error("`do_remote_prefill` is false")]
    NotForDecode,
    /// There is nothing to fetch.
    #[error("`remote_block_ids` names no block")]
    NoBlocks,
}

/// Whether decode can fetch the KV cache with these params: all keys that it
/// can't do without are there, and they name at least one block.
///
/// # Errors
///
/// The first thing that is wrong.
pub fn usable(kv_params: &str) -> Result<(), Unusable> {
    #[derive(Deserialize)]
    struct Coordinates {
        do_remote_prefill: Option<bool>,
        remote_block_ids: Option<Vec<Value>>,
        remote_engine_id: Option<Value>,
        remote_request_id: Option<Value>,
        remote_host: Option<String>,
        remote_port: Option<u16>,
    }
    let params: Coordinates = serde_json::from_str(kv_params)?;
    if !params.do_remote_prefill.ok_or(Unusable::Missing("do_remote_prefill"))? {
        return Err(Unusable::NotForDecode);
    }
    let groups = params.remote_block_ids.ok_or(Unusable::Missing("remote_block_ids"))?;
    params.remote_engine_id.ok_or(Unusable::Missing("remote_engine_id"))?;
    params.remote_request_id.ok_or(Unusable::Missing("remote_request_id"))?;
    params.remote_host.ok_or(Unusable::Missing("remote_host"))?;
    params.remote_port.ok_or(Unusable::Missing("remote_port"))?;
    // One list per KV cache group, or one flat list in older engines.
    let names_a_block = |group: &Value| group.as_array().map_or(!group.is_null(), |ids| !ids.is_empty());
    if groups.iter().any(names_a_block) { Ok(()) } else { Err(Unusable::NoBlocks) }
}

#[cfg(test)]
mod tests;
