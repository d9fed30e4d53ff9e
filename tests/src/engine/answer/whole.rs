//! The answer in one piece; the order of the keys and every null are the engine's.

use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::logprobs::logprobs;
use super::{FINGERPRINT, PromptDetails, Usage, unix_time};
use crate::engine::body::SimBody;
use crate::engine::call::{Call, Endpoint};
use crate::engine::config::Config;
use crate::engine::fault::Outcome;
use crate::engine::generate::{Event, Finish, Generation};
use crate::engine::rejection::{Rejection, json_response};
use crate::engine::tokenizer::detokenize;

#[derive(Serialize)]
struct Completion<'a> {
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
struct ChatCompletion<'a> {
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

/// What a choice has become.
#[derive(Default)]
struct Outcomes {
    text: String,
    tokens: Vec<u32>,
    finish: Option<Finish>,
}

/// Waits for all choices, and answers.
pub(crate) async fn whole(
    call: &Call,
    mut generation: Generation,
    config: &Config,
    faults: &[Outcome],
) -> Result<Response<SimBody>, Rejection> {
    let mut choices: Vec<Outcomes> = Vec::new();
    choices.resize_with(call.prompts.len() * call.n, Outcomes::default);
    // A real engine says where one of its sequences lies: the last that ended of the first prompt's.
    let mut kv_params = None;
    let mut cached_tokens = 0;
    while let Some((choice, event)) = generation.next().await {
        match event {
            Event::Failed(rejection) => return Err(rejection),
            Event::Token { id, text, finish } => {
                let outcome = &mut choices[choice];
                outcome.tokens.push(id);
                outcome.text.push_str(&text);
                if let Some(finish) = finish {
                    cached_tokens += if choice % call.n == 0 { finish.cached_tokens } else { 0 };
                    if let Some(params) = finish.kv_transfer_params.as_ref().filter(|_| choice < call.n) {
                        kv_params = to_raw_value(params).ok();
                    }
                    outcome.finish = Some(finish);
                }
            }
        }
    }
    for fault in faults {
        if let Outcome::KvParams { value } = fault {
            kv_params = to_raw_value(value).ok();
        }
    }
    let mut usage = Usage::total(call, choices.iter().map(|choice| choice.tokens.len()).sum());
    usage.prompt_tokens_details =
        Some(config.prompt_tokens_details.then_some(PromptDetails { cached_tokens }));
    usage.completion_tokens_details = Some(());
    Ok(match call.endpoint {
        Endpoint::Completions => json_response(StatusCode::OK, &completion(call, choices, usage, kv_params)),
        Endpoint::Chat => json_response(StatusCode::OK, &chat(call, choices, usage, kv_params)),
    })
}

fn completion(
    call: &Call,
    choices: Vec<Outcomes>,
    usage: Usage,
    kv_params: Option<Box<RawValue>>,
) -> Completion<'_> {
    let choice = |(index, outcome): (usize, Outcomes)| {
        let prompt = call.prompts.get(index / call.n).map(Vec::as_slice).unwrap_or_default();
        let echoed = if call.echo { detokenize(prompt) } else { String::new() };
        let generated = if call.sampling.max_tokens == 0 { "" } else { &outcome.text };
        CompletionChoice {
            index,
            text: format!("{echoed}{generated}"),
            logprobs: logprobs(call.endpoint, &outcome.tokens, call.logprobs),
            finish_reason: outcome.finish.as_ref().map_or("abort", |finish| finish.reason),
            stop_reason: outcome.finish.map_or(Value::Null, |finish| finish.stop_reason),
            token_ids: call.return_token_ids.then_some(outcome.tokens),
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
        choices: choices.into_iter().enumerate().map(choice).collect(),
        service_tier: (),
        system_fingerprint: FINGERPRINT,
        usage,
        kv_transfer_params: kv_params,
        ec_transfer_params: (),
        metrics: (),
    }
}

fn chat(
    call: &Call,
    choices: Vec<Outcomes>,
    usage: Usage,
    kv_params: Option<Box<RawValue>>,
) -> ChatCompletion<'_> {
    let choice = |(index, outcome): (usize, Outcomes)| ChatChoice {
        index,
        logprobs: logprobs(call.endpoint, &outcome.tokens, call.logprobs),
        finish_reason: outcome.finish.as_ref().map_or("abort", |finish| finish.reason),
        stop_reason: outcome.finish.map_or(Value::Null, |finish| finish.stop_reason),
        token_ids: call.return_token_ids.then_some(outcome.tokens),
        message: Message {
            role: "assistant",
            content: outcome.text,
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
        choices: choices.into_iter().enumerate().map(choice).collect(),
        service_tier: (),
        system_fingerprint: FINGERPRINT,
        usage,
        prompt_logprobs: (),
        prompt_token_ids: call.prompts.first().map(Vec::as_slice).filter(|_| call.return_token_ids),
        prompt_text: (),
        kv_transfer_params: kv_params,
        ec_transfer_params: (),
        metrics: (),
    }
}
