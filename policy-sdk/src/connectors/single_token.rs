//! The prefill leg that every connector starts from: the client's request, cut
//! down to one token and not streamed.
//!
//! Which fields may stay follows vLLM 0.33 (`entrypoints/openai/*/protocol.py`)
//! and holds for the engines before it.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::{Leg, Request};

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

/// What the single token may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Whatever the model says first.
    Any,
    /// Anything but the end of the text, for connectors that keep the KV cache
    /// only of a request that ended by its length (vLLM's `check_stop` looks
    /// for the end of the text first).
    NotTheEnd,
}

/// One token, not streamed.
///
/// What shapes the prompt (`messages`, `tools`, `chat_template`, `cache_salt`,
/// …) is left alone, so that both engines see the same one; so is
/// `response_format`, which some chat templates render.
pub(crate) fn leg(request: &Request<'_>, token: Token) -> Leg {
    let leg = Leg::new().set("stream", "false");
    if request.endpoint() == GENERATE {
        return generate_leg(request, leg, token);
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
    let leg = NOT_FOR_PREFILL.into_iter().fold(leg, Leg::remove);
    match token {
        Token::Any => leg,
        Token::NotTheEnd => leg.set("min_tokens", "1"),
    }
}

/// The same for token ids: there the sampling parameters are an object of
/// their own, and the answer may be asked for as text.
fn generate_leg(request: &Request<'_>, leg: Leg, token: Token) -> Leg {
    let mut leg = leg.remove("stream_options");
    if request.field("output_mode").is_some() {
        leg = leg.set("output_mode", "\"tokens\"");
    }
    match request.field("sampling_params").and_then(|params| one_token(&params, token)) {
        Some(params) => leg.set("sampling_params", params),
        // Prefill says what is wrong with them.
        None => leg,
    }
}

/// Sampling parameters that end after one token. What stays keeps its text.
fn one_token(params: &str, token: Token) -> Option<String> {
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(params).ok()?;
    let one: &RawValue = serde_json::from_str("1").ok()?;
    for name in NOT_FOR_PREFILL {
        fields.remove(name);
    }
    fields.entry("n".into()).and_modify(|n| *n = one);
    fields.insert("max_tokens".into(), one);
    if token == Token::NotTheEnd {
        fields.insert("min_tokens".into(), one);
    }
    serde_json::to_string(&fields).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::golden::edited;
    use crate::testing;

    #[test]
    fn a_token_that_is_not_the_end_is_asked_for_where_the_endpoint_looks_for_it() {
        let plain = r#"{"model": "m", "prompt": "p", "min_tokens": 7}"#;
        let ids = r#"{"token_ids": [1], "sampling_params": {"min_tokens": 7, "temperature": 0.70}}"#;
        let body = |endpoint: &str, body: &str| {
            let request = testing::request(endpoint).json(body);
            edited(body, &leg(&request.as_request(), Token::NotTheEnd))
        };
        assert_eq!(body("/v1/completions", plain)["min_tokens"], 1);
        assert_eq!(body(GENERATE, ids)["sampling_params"]["min_tokens"], 1);
    }
}
