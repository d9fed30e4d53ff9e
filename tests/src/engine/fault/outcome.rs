//! Faults of the engine itself: it fails at a token, stops early, or says something odd about its KV cache.

use serde::Deserialize;
use serde_json::Value;

use super::{Fault, Kind};

/// How the generation ends, other than by itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// Fails after this many tokens: a 500, or an error event in a stream.
    ErrorAfter { tokens: usize },
    /// The first token is the last, with `finish_reason` `stop`; the first after `min_tokens`, where they are asked
    /// for, as the end of the text cannot be sampled before.
    FinishWithStop {},
    /// Token number so many is the last, with `finish_reason` `abort`: a server that is told to stop.
    AbortAfter { tokens: usize },
    /// `kv_transfer_params` of the answer. Null and `{}` pin nothing, as when a prefill ends in a way that its
    /// connector does not accept.
    KvParams { value: Value },
}

impl Fault {
    /// The engine fails before the first token: status 500, or in a stream an error event (after the role event
    /// of a chat) and `[DONE]`.
    pub fn error_event() -> Self {
        Self::error_after(0)
    }

    /// The engine fails after so many tokens.
    pub fn error_after(tokens: usize) -> Self {
        Self::new(Kind::Outcome(Outcome::ErrorAfter { tokens }))
    }

    /// The engine ends with `finish_reason` `stop` at the first token that may end a text: the one after `min_tokens`.
    pub fn finish_with_stop() -> Self {
        Self::new(Kind::Outcome(Outcome::FinishWithStop {}))
    }

    /// The engine ends with `finish_reason` `abort` after so many tokens, as when its server is told to stop.
    pub fn abort_after(tokens: usize) -> Self {
        Self::new(Kind::Outcome(Outcome::AbortAfter { tokens }))
    }

    /// The answer says this about the KV cache, instead of the truth.
    pub fn kv_params(value: Value) -> Self {
        Self::new(Kind::Outcome(Outcome::KvParams { value }))
    }
}
