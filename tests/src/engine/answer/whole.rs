//! The answer in one piece: what all choices have become, in the dialect of the endpoint.

use http::{Response, StatusCode};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::openai::{chat, completion};
use super::{PromptDetails, Usage, messages, tokens};
use crate::engine::body::SimBody;
use crate::engine::call::{Call, Endpoint};
use crate::engine::config::Config;
use crate::engine::fault::Outcome;
use crate::engine::generate::{Event, Finish, Generation};
use crate::engine::rejection::{Rejection, json_response};

/// What a choice has become.
#[derive(Default)]
pub(super) struct Choice {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
    pub(super) finish: Option<Finish>,
}

impl Choice {
    pub(super) fn finish_reason(&self) -> &'static str {
        self.finish.as_ref().map_or("abort", |finish| finish.reason)
    }

    pub(super) fn stop_reason(&self) -> Value {
        self.finish.as_ref().map(|finish| finish.stop_reason.clone()).unwrap_or_default()
    }
}

/// What all choices have become.
pub(super) struct Collected {
    pub(super) choices: Vec<Choice>,
    pub(super) usage: Usage,
    /// As the engine writes it, key for key.
    pub(super) kv_transfer_params: Option<Box<RawValue>>,
}

/// Waits for all choices, and answers.
pub(crate) async fn whole(
    call: &Call,
    generation: Generation,
    config: &Config,
    faults: &[Outcome],
) -> Result<Response<SimBody>, Rejection> {
    let mut collected = collect(call, generation, config).await?;
    for fault in faults {
        if let Outcome::KvParams { value } = fault {
            collected.kv_transfer_params = to_raw_value(value).ok();
        }
    }
    let ok = StatusCode::OK;
    Ok(match call.endpoint {
        Endpoint::Completions => json_response(ok, &completion(call, collected)),
        Endpoint::Chat => json_response(ok, &chat(call, collected)),
        Endpoint::Messages => json_response(ok, &messages::whole(call, &collected)),
        Endpoint::Generate => json_response(ok, &tokens::whole(call, collected)),
    })
}

async fn collect(call: &Call, mut generation: Generation, config: &Config) -> Result<Collected, Rejection> {
    let mut choices: Vec<Choice> = Vec::new();
    choices.resize_with(call.prompts.len() * call.n, Choice::default);
    let mut kv_transfer_params = None;
    let mut cached_tokens = 0;
    while let Some((index, event)) = generation.next().await {
        let (id, text, finish) = match event {
            Event::Failed(rejection) => return Err(rejection),
            Event::Token { id, text, finish } => (id, text, finish),
        };
        let choice = &mut choices[index];
        choice.tokens.push(id);
        choice.text.push_str(&text);
        if let Some(finish) = finish {
            cached_tokens += if index % call.n == 0 { finish.cached_tokens } else { 0 };
            // A real engine says where one of its sequences lies: the last that ended of the first prompt's.
            if let Some(offer) = finish.offer.as_ref().filter(|_| index < call.n) {
                kv_transfer_params = Some(offer.params.clone());
            }
            choice.finish = Some(finish);
        }
    }
    let mut usage = Usage::total(call, choices.iter().map(|choice| choice.tokens.len()).sum());
    usage.prompt_tokens_details =
        Some(config.prompt_tokens_details.then_some(PromptDetails { cached_tokens }));
    usage.completion_tokens_details = Some(());
    Ok(Collected { choices, usage, kv_transfer_params })
}
