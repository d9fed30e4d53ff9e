//! Completions and chats in one piece; the order of the keys and every null are the engine's.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::logprobs::logprobs;
use super::whole::{Choice, Collected};
use super::{FINGERPRINT, Usage, unix_time};
use crate::engine::call::Call;
use crate::engine::tokenizer::detokenize;

#[derive(Serialize)]
pub(super) struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<CompletionChoice>,
    service_tier: (),
    system_fingerprint: &'static str,
    usage: Usage,
    kv_transfer_params: Option<Box<RawValue>>,
    ec_transfer_params: (),
    metrics: (),
}

#[derive(Serialize)]
struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Value,
    finish_reason: &'static str,
    stop_reason: Value,
    token_ids: Option<Vec<u32>>,
    prompt_logprobs: (),
    prompt_token_ids: Option<Vec<u32>>,
    routed_experts: (),
}

#[derive(Serialize)]
pub(super) struct ChatCompletion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice>,
    service_tier: (),
    system_fingerprint: &'static str,
    usage: Usage,
    prompt_logprobs: (),
    prompt_token_ids: Option<&'a [u32]>,
    prompt_text: (),
    kv_transfer_params: Option<Box<RawValue>>,
    ec_transfer_params: (),
    metrics: (),
}

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: Message,
    logprobs: Value,
    finish_reason: &'static str,
    stop_reason: Value,
    token_ids: Option<Vec<u32>>,
    routed_experts: (),
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: (),
    annotations: (),
    audio: (),
    function_call: (),
    reasoning: (),
}

/// A completion, with every choice of every prompt.
pub(super) fn completion(call: &Call, collected: Collected) -> Completion<'_> {
    let choice = |(index, choice): (usize, Choice)| {
        let prompt = call.prompts.get(index / call.n).map(Vec::as_slice).unwrap_or_default();
        let echoed = if call.echo { detokenize(prompt) } else { String::new() };
        let generated = if call.sampling.max_tokens == 0 { "" } else { &choice.text };
        CompletionChoice {
            index,
            text: format!("{echoed}{generated}"),
            logprobs: logprobs(call.endpoint, &choice.tokens, call.logprobs),
            finish_reason: choice.finish_reason(),
            stop_reason: choice.stop_reason(),
            token_ids: call.return_token_ids.then_some(choice.tokens),
            prompt_logprobs: (),
            prompt_token_ids: call.return_token_ids.then(|| prompt.to_vec()),
            routed_experts: (),
        }
    };
    Completion {
        id: &call.id,
        object: "text_completion",
        created: unix_time(),
        model: &call.model,
        choices: collected.choices.into_iter().enumerate().map(choice).collect(),
        service_tier: (),
        system_fingerprint: FINGERPRINT,
        usage: collected.usage,
        kv_transfer_params: collected.kv_transfer_params,
        ec_transfer_params: (),
        metrics: (),
    }
}

/// A chat completion, with every copy.
pub(super) fn chat(call: &Call, collected: Collected) -> ChatCompletion<'_> {
    let choice = |(index, choice): (usize, Choice)| ChatChoice {
        index,
        logprobs: logprobs(call.endpoint, &choice.tokens, call.logprobs),
        finish_reason: choice.finish_reason(),
        stop_reason: choice.stop_reason(),
        token_ids: call.return_token_ids.then_some(choice.tokens),
        message: Message {
            role: "assistant",
            content: choice.text,
            refusal: (),
            annotations: (),
            audio: (),
            function_call: (),
            reasoning: (),
        },
        routed_experts: (),
    };
    ChatCompletion {
        id: &call.id,
        object: "chat.completion",
        created: unix_time(),
        model: &call.model,
        choices: collected.choices.into_iter().enumerate().map(choice).collect(),
        service_tier: (),
        system_fingerprint: FINGERPRINT,
        usage: collected.usage,
        prompt_logprobs: (),
        prompt_token_ids: call.prompts.first().map(Vec::as_slice).filter(|_| call.return_token_ids),
        prompt_text: (),
        kv_transfer_params: collected.kv_transfer_params,
        ec_transfer_params: (),
        metrics: (),
    }
}
