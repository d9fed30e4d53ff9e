//! Completions and chats as events: one per token, with the keys that each kind of event has on real engines.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::logprobs::logprobs;
use super::stream::{DONE, Dialect, frame};
use super::{FINGERPRINT, PromptDetails, Usage, unix_time};
use crate::engine::call::{Call, Endpoint};
use crate::engine::generate::Finish;
use crate::engine::rejection::Rejection;
use crate::engine::tokenizer::detokenize;

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Box<RawValue>>,
    #[serde(flatten)]
    prompt: Option<PromptKeys<'a>>,
}

/// What only the first event of a chat carries at its end.
#[derive(Serialize)]
struct PromptKeys<'a> {
    prompt_token_ids: Option<&'a [u32]>,
    prompt_text: (),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Choice<'a> {
    Text {
        index: usize,
        text: String,
        logprobs: Value,
        finish_reason: Option<&'static str>,
        stop_reason: Value,
        prompt_token_ids: Option<&'a [u32]>,
        token_ids: Option<[u32; 1]>,
    },
    Role {
        index: usize,
        delta: RoleDelta,
        logprobs: (),
        finish_reason: (),
    },
    Delta {
        index: usize,
        delta: ContentDelta,
        logprobs: Value,
        finish_reason: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stop_reason: Option<Value>,
        token_ids: Option<[u32; 1]>,
    },
}

#[derive(Serialize)]
struct RoleDelta {
    role: &'static str,
    content: &'static str,
}

#[derive(Serialize)]
struct ContentDelta {
    content: String,
}

/// The events of completions and chats.
pub(super) struct Chunks {
    call: Call,
    created: u64,
    /// Tokens so far, by choice.
    counts: Vec<usize>,
    /// Whether usage says what was cached.
    details: bool,
}

impl Dialect for Chunks {
    fn opening(&self) -> Vec<String> {
        match self.call.endpoint {
            Endpoint::Chat => (0..self.counts.len()).map(|index| frame(&self.role(index))).collect(),
            _ => Vec::new(),
        }
    }

    fn token(&mut self, index: usize, id: u32, text: String, finish: Option<&Finish>) -> Option<String> {
        self.counts[index] += 1;
        Some(frame(&self.chunk(index, id, text, finish)))
    }

    fn closing(&self, cached_tokens: usize) -> Vec<String> {
        let mut frames = Vec::new();
        if self.call.include_usage {
            let mut usage = Usage::total(&self.call, self.counts.iter().sum());
            usage.prompt_tokens_details = self.details.then_some(Some(PromptDetails { cached_tokens }));
            let blank = self.blank(Vec::new(), Some(usage));
            frames.push(frame(&Chunk { system_fingerprint: Some(FINGERPRINT), ..blank }));
        }
        frames.push(DONE.to_owned());
        frames
    }

    fn failure(&self, rejection: &Rejection) -> Vec<String> {
        vec![format!("data: {}\n\n", rejection.event()), DONE.to_owned()]
    }
}

impl Chunks {
    pub(super) fn new(call: Call, details: bool) -> Self {
        Self { counts: vec![0; call.prompts.len() * call.n], created: unix_time(), call, details }
    }

    fn role(&self, index: usize) -> Chunk<'_> {
        let delta = RoleDelta { role: "assistant", content: "" };
        let choice = Choice::Role { index, delta, logprobs: (), finish_reason: () };
        let prompt_token_ids = self.prompt(index).filter(|_| self.call.return_token_ids);
        Chunk {
            prompt: Some(PromptKeys { prompt_token_ids, prompt_text: () }),
            ..self.blank(vec![choice], self.continuous_usage(index))
        }
    }

    fn chunk(&self, index: usize, id: u32, text: String, finish: Option<&Finish>) -> Chunk<'_> {
        let call = &self.call;
        let first = self.counts[index] == 1;
        let logprobs = logprobs(call.endpoint, &[id], call.logprobs);
        let finish_reason = finish.map(|finish| finish.reason);
        let offer = finish.and_then(|finish| finish.offer.as_ref()).filter(|offer| offer.in_streams);
        let stop_reason = finish.map(|finish| finish.stop_reason.clone());
        let token_ids = call.return_token_ids.then_some([id]);
        let choice = match call.endpoint {
            Endpoint::Completions => Choice::Text {
                index,
                text: self.echoed(index, first, text),
                logprobs,
                finish_reason,
                stop_reason: stop_reason.unwrap_or_default(),
                prompt_token_ids: self.prompt(index).filter(|_| call.return_token_ids && first),
                token_ids,
            },
            _ => {
                let delta = ContentDelta { content: text };
                Choice::Delta { index, delta, logprobs, finish_reason, stop_reason, token_ids }
            }
        };
        Chunk {
            system_fingerprint: (finish.is_some() && !call.include_usage).then_some(FINGERPRINT),
            kv_transfer_params: offer.map(|offer| offer.params.clone()),
            ..self.blank(vec![choice], self.continuous_usage(index))
        }
    }

    fn echoed(&self, index: usize, first: bool, text: String) -> String {
        let text = if self.call.sampling.max_tokens == 0 { String::new() } else { text };
        let prompt = self.prompt(index).filter(|_| self.call.echo && first).unwrap_or_default();
        format!("{}{text}", detokenize(prompt))
    }

    fn prompt(&self, index: usize) -> Option<&[u32]> {
        self.call.prompts.get(index / self.call.n).map(Vec::as_slice)
    }

    fn continuous_usage(&self, index: usize) -> Option<Usage> {
        self.call.continuous_usage.then(|| {
            let mut usage = Usage::new(self.prompt(index).map_or(0, <[u32]>::len), self.counts[index]);
            usage.completion_tokens_details = (self.call.endpoint == Endpoint::Chat).then_some(());
            usage
        })
    }

    fn blank<'a>(&'a self, choices: Vec<Choice<'a>>, usage: Option<Usage>) -> Chunk<'a> {
        let object = match self.call.endpoint {
            Endpoint::Completions => "text_completion",
            _ => "chat.completion.chunk",
        };
        let (id, model) = (&self.call.id, &self.call.model);
        let created = self.created;
        Chunk {
            id,
            object,
            created,
            model,
            choices,
            usage,
            system_fingerprint: None,
            kv_transfer_params: None,
            prompt: None,
        }
    }
}
