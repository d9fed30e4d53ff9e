//! What became of requests.

use crate::Placement;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultClass {
    /// The engine's answer was delivered whole.
    Ok,
    /// The engine refused the request (4xx).
    Refused,
    /// An engine failed (5xx, connection lost, cut stream).
    EngineFailed,
    /// A deadline of the router passed.
    TimedOut,
    /// The client went away.
    Cancelled,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Where prefill ran, if it was scheduled.
    pub prefill: Option<Placement>,
    /// Where decode ran, if it was scheduled.
    pub decode: Option<Placement>,
    /// How the request ended.
    pub class: ResultClass,
    /// Status sent to the client; 0 when none was sent.
    pub status: u16,
    /// Time to the first byte of the answer's body in milliseconds; 0 if none.
    pub ttft_ms: u32,
    /// Time to the last byte in milliseconds.
    pub duration_ms: u32,
    /// Prompt tokens as the engine's usage reports them; 0 when not reported.
    pub prompt_tokens: u32,
    /// Produced tokens as the engine's usage reports them; 0 when not
    /// reported.
    pub completion_tokens: u32,
    /// Prompt tokens found in a KV cache as the engine's usage reports them;
    /// 0 when not reported.
    pub cached_tokens: u32,
}
