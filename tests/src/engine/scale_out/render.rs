//! From a client's request to the one that an engine takes on `/inference/v1/generate`.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Map, Value, json};

use crate::engine::call::{Call, Endpoint};
use crate::engine::config::Config;
use crate::engine::fields::Fields;
use crate::engine::rejection::Rejection;
use crate::engine::tokenizer::tokenize;

/// What goes on as it is.
const SAMPLING: [&str; 11] = [
    "n",
    "seed",
    "temperature",
    "top_p",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
    "logit_bias",
    "presence_penalty",
    "prompt_logprobs",
];

/// Of vLLM's sampling parameters; one that has its default value is not written down.
const DEFAULT_MAX_TOKENS: usize = 16;

/// One request for a chat, a list of one for each prompt of a completion.
pub(super) fn render(
    config: &Config,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Value, Rejection> {
    let fields = Fields::parse(headers, body)?;
    let call = Call::parse(endpoint, headers, &fields, config)?;
    if fields.flag("use_beam_search") {
        return Err(Rejection::bad_request("Beam search is not supported by the render endpoint"));
    }
    let limit = call.sampling.max_tokens;
    let request = |(index, prompt): (usize, &Vec<u32>)| {
        let place = if call.prompts.len() > 1 { format!("-{index}") } else { String::new() };
        request(&fields, &format!("{}{place}", call.id), &call.model, prompt, limit)
    };
    let mut requests: Vec<Value> = call.prompts.iter().enumerate().map(request).collect();
    Ok(if endpoint == Endpoint::Completions { Value::from(requests) } else { requests.remove(0) })
}

/// Of a response, whose input is taken for a prompt.
pub(super) fn responses(config: &Config, headers: &HeaderMap, body: &Bytes) -> Result<Value, Rejection> {
    let fields = Fields::parse(headers, body)?;
    let prompt = tokenize(fields.text("input").ok_or_else(|| fields.missing("input"))?);
    let model = fields.text("model").unwrap_or(&config.model);
    Ok(request(&fields, "resp_sim", model, &prompt, config.max_model_len - prompt.len()))
}

fn request(fields: &Fields, id: &str, model: &str, prompt: &[u32], limit: usize) -> Value {
    let mut sampling = Map::new();
    for name in SAMPLING {
        if let Some(value) = fields.get(name) {
            sampling.insert(name.to_owned(), value.clone());
        }
    }
    if limit != DEFAULT_MAX_TOKENS {
        sampling.insert("max_tokens".to_owned(), limit.into());
    }
    sampling.insert("skip_clone".to_owned(), true.into());
    let stream = fields.flag("stream");
    let features = fields.get("messages").filter(|messages| messages.to_string().contains("image_url"));
    let payload = fields.text("mm_payload") != Some("none");
    let features = features.map(|_| {
        let kwargs = payload.then(|| json!({ "image": ["aGk="] }));
        json!({ "mm_hashes": { "image": ["hash"] }, "mm_placeholders": {}, "kwargs_data": kwargs })
    });
    json!({
        "request_id": id, "token_ids": prompt, "token_offsets": null, "features": features,
        "content_parts": null, "sampling_params": sampling, "model": model, "reasoning_ended": null,
        "reasoning_parser_kwargs": null, "return_token_ids": null, "output_mode": "tokens", "stream": stream,
        "stream_options": fields.get("stream_options").filter(|_| stream),
        "cache_salt": fields.get("cache_salt"), "priority": 0,
        "kv_transfer_params": fields.get("kv_transfer_params"), "ec_transfer_params": null,
    })
}
