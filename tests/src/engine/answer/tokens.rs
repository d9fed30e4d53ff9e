//! `/inference/v1/generate`: token ids in, token ids out.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::stream::{DONE, Dialect, frame};
use super::whole::{Choice, Collected};
use super::{PromptDetails, Usage, unix_time};
use crate::engine::call::Call;
use crate::engine::generate::Finish;
use crate::engine::rejection::Rejection;

#[derive(Serialize)]
pub(super) struct Generated<'a> {
    request_id: &'a str,
    model: &'a str,
    created: u64,
    usage: Usage,
    prompt_logprobs: (),
    prompt_token_id_logprobs: (),
    prompt_token_ids: (),
    mm_placeholders: (),
    metrics: (),
    kv_transfer_params: Option<Box<RawValue>>,
    ec_transfer_params: (),
    output_mode: &'static str,
    choices: Vec<TokenChoice>,
}

#[derive(Serialize)]
struct TokenChunk<'a> {
    request_id: &'a str,
    usage: Option<Usage>,
    output_mode: &'static str,
    choices: Vec<TokenChoice>,
}

#[derive(Serialize)]
struct TokenChoice {
    index: usize,
    finish_reason: Option<&'static str>,
    stop_reason: Value,
    token_ids: Vec<u32>,
    routed_experts: (),
    sampling_mask: (),
    /// At the end of a choice: which weights made which of its tokens.
    weight_versions: Option<[WeightVersion; 1]>,
    logprobs: (),
}

#[derive(Serialize)]
struct WeightVersion {
    version: &'static str,
    start: usize,
    end: usize,
}

impl TokenChoice {
    fn new(index: usize, token_ids: Vec<u32>, total: usize, finish: Option<&Finish>) -> Self {
        Self {
            index,
            finish_reason: finish.map(|finish| finish.reason),
            stop_reason: finish.map(|finish| finish.stop_reason.clone()).unwrap_or_default(),
            token_ids,
            routed_experts: (),
            sampling_mask: (),
            weight_versions: finish.map(|_| [WeightVersion { version: "default", start: 0, end: total }]),
            logprobs: (),
        }
    }
}

/// The answer in one piece.
pub(super) fn whole(call: &Call, collected: Collected) -> Generated<'_> {
    let choice = |(index, choice): (usize, Choice)| {
        let total = choice.tokens.len();
        TokenChoice::new(index, choice.tokens, total, choice.finish.as_ref())
    };
    Generated {
        request_id: &call.id,
        model: &call.model,
        created: unix_time(),
        usage: collected.usage,
        prompt_logprobs: (),
        prompt_token_id_logprobs: (),
        prompt_token_ids: (),
        mm_placeholders: (),
        metrics: (),
        kv_transfer_params: collected.kv_transfer_params,
        ec_transfer_params: (),
        output_mode: "tokens",
        choices: collected.choices.into_iter().enumerate().map(choice).collect(),
    }
}

/// The events of a stream.
pub(super) struct TokenEvents {
    call: Call,
    details: bool,
    counts: Vec<usize>,
}

impl TokenEvents {
    pub(super) fn new(call: Call, details: bool) -> Self {
        Self { counts: vec![0; call.n], call, details }
    }
}

impl Dialect for TokenEvents {
    fn opening(&self) -> Vec<String> {
        Vec::new()
    }

    fn token(&mut self, index: usize, id: u32, _text: String, finish: Option<&Finish>) -> Option<String> {
        self.counts[index] += 1;
        let choices = vec![TokenChoice::new(index, vec![id], self.counts[index], finish)];
        let prompt = self.call.prompts.first().map_or(0, Vec::len);
        let usage = self.call.continuous_usage.then(|| Usage::new(prompt, self.counts[index]));
        Some(frame(&TokenChunk { request_id: &self.call.id, usage, output_mode: "tokens", choices }))
    }

    fn closing(&self, cached_tokens: usize) -> Vec<String> {
        let mut frames = Vec::new();
        if self.call.include_usage {
            let mut usage = Usage::total(&self.call, self.counts.iter().sum());
            usage.prompt_tokens_details = self.details.then_some(Some(PromptDetails { cached_tokens }));
            let (request_id, choices) = (&*self.call.id, Vec::new());
            let last = TokenChunk { request_id, usage: Some(usage), output_mode: "tokens", choices };
            frames.push(frame(&last));
        }
        frames.push(DONE.to_owned());
        frames
    }

    fn failure(&self, rejection: &Rejection) -> Vec<String> {
        vec![format!("data: {}\n\n", rejection.event()), DONE.to_owned()]
    }
}
