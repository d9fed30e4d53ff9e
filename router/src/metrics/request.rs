//! Metrics of requests.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::histogram::Histogram;
use crate::body::sse::Usage;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LegLabels {
    leg: &'static str,
}

/// Ways in which a request was served otherwise than it should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// No encode instance could take its media; whoever computes the prompt encodes them.
    NoEncode,
    /// No prefill instance could take it; decode computed the prompt.
    NoPrefill,
    /// Prefill failed on all tries; decode computed the prompt.
    PrefillFailed,
    /// Prefill returned nothing that decode could use; decode computed the prompt.
    NoHandle,
    /// The handle was refused, by the guard or by the policy; decode computed the prompt.
    BadHandle,
    /// The handle was too old to be used; the prompt was computed again.
    LateHandle,
}

impl Fallback {
    /// Who does the work instead.
    pub fn consequence(self) -> &'static str {
        match self {
            Self::NoEncode => "media are encoded where the prompt is computed",
            Self::NoPrefill | Self::PrefillFailed | Self::NoHandle | Self::BadHandle | Self::LateHandle => {
                "decode computes the prompt itself"
            }
        }
    }

    /// Name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoEncode => "no_encode_instance",
            Self::NoPrefill => "no_prefill_instance",
            Self::PrefillFailed => "prefill_failed",
            Self::NoHandle => "no_handle",
            Self::BadHandle => "bad_handle",
            Self::LateHandle => "late_handle",
        }
    }
}

/// Counts requests, how long they took, and what went wrong on the way.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    requests: Family<RequestLabels, Counter>,
    cancelled: Counter,
    broken_off: Counter,
    fallbacks: Family<KindLabels, Counter>,
    retries: Family<LegLabels, Counter>,
    orphaned_handles: Counter,
    released_handles: Counter,
    readbacks: Counter,
    ttft: Histogram,
    duration: Histogram,
    encode: Histogram,
    prefill: Histogram,
    render: Histogram,
    derender: Histogram,
    tokens: Family<KindLabels, Counter>,
}

impl RequestMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let m = Self::default();
        registry.register("requests", "Requests answered, by endpoint and status", m.requests.clone());
        registry.register(
            "requests_cancelled",
            "Requests whose client left before the answer ended",
            m.cancelled.clone(),
        );
        registry.register(
            "answers_broken_off",
            "Answers that ended early for the engine's fault, after their head had been sent",
            m.broken_off.clone(),
        );
        registry.register("fallbacks", "Requests that were not served the usual way", m.fallbacks.clone());
        registry.register("retries", "Legs that were sent again to another instance", m.retries.clone());
        registry.register(
            "released_handles",
            "KV handles that no decode took and that were given back to prefill",
            m.released_handles.clone(),
        );
        registry.register(
            "orphaned_handles",
            "KV handles that prefill gave out and no decode took; the engine frees them when their lease ends",
            m.orphaned_handles.clone(),
        );
        registry.register(
            "readbacks",
            "Prefill legs that were told where decode keeps the KV cache of the conversation's last turn",
            m.readbacks.clone(),
        );
        registry.register(
            "time_to_first_token_seconds",
            "From the request to the first byte of the answer's body",
            m.ttft.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "From the request to the last byte of the answer",
            m.duration.clone(),
        );
        registry.register("encode_duration_seconds", "Of all encode legs together", m.encode.clone());
        registry.register("prefill_duration_seconds", "Of the prefill leg", m.prefill.clone());
        registry.register("render_duration_seconds", "Of turning a request into token ids", m.render.clone());
        registry.register(
            "derender_duration_seconds",
            "Of turning an answer, or an event of it, back from token ids",
            m.derender.clone(),
        );
        registry.register("tokens", "Tokens that the engines reported in usage", m.tokens.clone());
        m
    }

    /// A request was answered.
    pub fn answered(&self, endpoint: &'static str, status: u16, duration: Duration) {
        self.requests.get_or_create(&RequestLabels { endpoint, status }).inc();
        self.duration.observe(duration);
    }

    /// A client left.
    pub fn cancelled(&self) {
        self.cancelled.inc();
    }

    /// An answer ended before its end.
    pub fn broke_off(&self) {
        self.broken_off.inc();
    }

    /// The first byte of an answer came.
    pub fn first_token(&self, after: Duration) {
        self.ttft.observe(after);
    }

    /// The media of a request are encoded.
    pub fn encoded(&self, duration: Duration) {
        self.encode.observe(duration);
    }

    /// A prefill leg ended well.
    pub fn prefilled(&self, duration: Duration) {
        self.prefill.observe(duration);
    }

    /// A renderer turned a request into token ids, or answered the client directly.
    pub fn rendered(&self, duration: Duration) {
        self.render.observe(duration);
    }

    /// A renderer turned an answer, or an event of it, back.
    pub fn derendered(&self, duration: Duration) {
        self.derender.observe(duration);
    }

    /// A request was served otherwise.
    pub fn fell_back(&self, fallback: Fallback) {
        self.fallbacks.get_or_create(&KindLabels { kind: fallback.name() }).inc();
    }

    /// A leg is sent again.
    pub fn retried(&self, leg: &'static str) {
        self.retries.get_or_create(&LegLabels { leg }).inc();
    }

    /// A handle was given out and not used.
    pub fn orphaned(&self) {
        self.orphaned_handles.inc();
    }

    /// A handle was given back.
    pub fn released(&self) {
        self.released_handles.inc();
    }

    /// A prefill leg reads a KV cache back.
    pub fn read_back(&self) {
        self.readbacks.inc();
    }

    /// An engine reported usage.
    pub fn used(&self, usage: Usage) {
        for (kind, tokens) in [
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached", usage.cached_tokens),
        ] {
            if tokens > 0 {
                self.tokens.get_or_create(&KindLabels { kind }).inc_by(u64::from(tokens));
            }
        }
    }
}
