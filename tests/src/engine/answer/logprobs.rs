//! Log probabilities: numbers of the right shape, in the right number, that follow from the token alone.

use serde_json::{Value, json};

use crate::engine::call::Endpoint;
use crate::engine::digest::mix;
use crate::engine::tokenizer::{detokenize, sampled};

/// The `logprobs` of a choice with these tokens, `top` alternatives each.
pub(super) fn logprobs(endpoint: Endpoint, tokens: &[u32], top: Option<usize>) -> Value {
    match (endpoint, top) {
        (_, None) => Value::Null,
        (Endpoint::Completions, Some(top)) => completion(tokens, top),
        (_, Some(top)) => {
            let content: Vec<Value> = tokens.iter().map(|token| chat_token(*token, top)).collect();
            json!({ "content": content })
        }
    }
}

fn completion(tokens: &[u32], top: usize) -> Value {
    let texts: Vec<String> = tokens.iter().map(|token| detokenize(&[*token])).collect();
    let offsets: Vec<usize> = texts
        .iter()
        .scan(0, |at, text| {
            let offset = *at;
            *at += text.chars().count();
            Some(offset)
        })
        .collect();
    let alternatives: Vec<Value> = tokens
        .iter()
        .map(|token| ranked(*token, top).map(|(id, p)| (detokenize(&[id]), json!(p))).collect())
        .collect();
    json!({
        "text_offset": offsets,
        "token_logprobs": tokens.iter().map(|token| logprob(*token, 0)).collect::<Vec<_>>(),
        "tokens": texts,
        "top_logprobs": alternatives,
    })
}

fn chat_token(token: u32, top: usize) -> Value {
    let entry = |(id, p): (u32, f64)| {
        let text = detokenize(&[id]);
        json!({ "token": text, "logprob": p, "bytes": text.as_bytes() })
    };
    let mut shown = entry((token, logprob(token, 0)));
    shown["top_logprobs"] = ranked(token, top).map(entry).collect();
    shown
}

/// The token itself first, then made-up others, less and less likely.
fn ranked(token: u32, top: usize) -> impl Iterator<Item = (u32, f64)> {
    (0..top).map(move |rank| {
        let id = if rank == 0 { token } else { sampled(mix(u64::from(token), rank as u64)) };
        (id, logprob(token, rank))
    })
}

fn logprob(token: u32, rank: usize) -> f64 {
    -((mix(u64::from(token), 0) % 1000) as f64 / 1000.0) - rank as f64 - 0.001
}
