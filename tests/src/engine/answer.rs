//! The answer to a request that generates: whole, or as a stream of events.

mod chunks;
mod logprobs;
mod messages;
mod openai;
mod stream;
mod tokens;
mod whole;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

pub(crate) use stream::stream;
pub(crate) use whole::whole;

use super::call::Call;

/// `system_fingerprint` of every answer.
const FINGERPRINT: &str = "vllm-0.32.0-simulated";

/// Seconds since the epoch, for `created`.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Token counts, with the keys that only some places carry.
#[derive(Clone, Copy, Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<Option<PromptDetails>>,
    /// Always null, where it is at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<()>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

impl Usage {
    fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// All prompts once, whatever `n`; all generated tokens.
    fn total(call: &Call, completion_tokens: usize) -> Self {
        Self::new(call.prompts.iter().map(Vec::len).sum(), completion_tokens)
    }
}
