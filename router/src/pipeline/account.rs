//! What became of a request: counted, told to the policies that asked, and logged, once, when the
//! request is over, however it ends.

use std::sync::Arc;
use std::time::Duration;

use edge_router_policy::{Outcome, Placement, ResultClass};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::headers::X_REQUEST_ID;
use super::schedule::Scheduled;
use crate::app::App;
use crate::body::sse::Usage;
use crate::error::{Error, chain};
use crate::handoff::Unsafe;
use crate::metrics::{Fallback, Metrics};
use crate::server::route::Endpoint;
use crate::telemetry::Sometimes;

/// A client's id of this length or less is echoed; a longer one would be copied into every log line.
const MAX_CLIENT_ID: usize = 128;

/// A fallback of one kind is logged this often; the metric counts them all.
static FALLBACK_LOG: Sometimes = Sometimes::every(Duration::from_secs(10));
static LEG_LOG: Sometimes = Sometimes::every(Duration::from_secs(1));

/// One request's account.
#[derive(Debug)]
pub struct Account {
    metrics: Arc<Metrics>,
    outcomes: Option<mpsc::Sender<Outcome>>,
    endpoint: &'static str,
    /// Whether its answer is made of tokens.
    generates: bool,
    started: Instant,
    id: String,
    client_id: Option<HeaderValue>,
    attempts: u32,
    render: Option<(String, Duration)>,
    encoded: Option<Encoded>,
    prefill: Option<Stop>,
    decode: Option<Stop>,
    status: u16,
    class: ResultClass,
    ttft: Option<Duration>,
    usage: Option<Usage>,
}

/// What the encode legs of the last try came to.
#[derive(Debug)]
struct Encoded {
    items: usize,
    legs: usize,
    took: Duration,
}

/// Where a leg went.
#[derive(Debug)]
struct Stop {
    placement: Placement,
    address: String,
    by: Arc<str>,
    reason: String,
    took: Duration,
}

impl Stop {
    fn of(scheduled: &Scheduled) -> Self {
        Self {
            placement: scheduled.chosen.placement(),
            address: scheduled.chosen.instance.address().to_owned(),
            by: Arc::clone(&scheduled.by),
            reason: scheduled.chosen.reason.clone(),
            took: Duration::ZERO,
        }
    }
}

impl Account {
    /// Opens the account of a request that has just arrived.
    pub fn open(app: &App, endpoint: &Endpoint, headers: &HeaderMap) -> Self {
        let sane = |v: &&HeaderValue| !v.is_empty() && v.len() <= MAX_CLIENT_ID && v.to_str().is_ok();
        Self {
            metrics: Arc::clone(&app.metrics),
            outcomes: app.chain.facts().outcomes.then(|| app.outcomes.clone()),
            endpoint: endpoint.name(),
            generates: endpoint.generates(),
            started: Instant::now(),
            id: app.new_id(),
            client_id: headers.get(X_REQUEST_ID).filter(sane).cloned(),
            attempts: 0,
            render: None,
            encoded: None,
            prefill: None,
            decode: None,
            status: 0,
            class: ResultClass::Cancelled,
            ttft: None,
            usage: None,
        }
    }

    /// The id for the client: its own, if it sent a usable one.
    pub fn answer_id(&self) -> Option<HeaderValue> {
        self.client_id.clone().or_else(|| HeaderValue::from_str(&self.id).ok())
    }

    /// An id that no engine has seen: never the client's, which may come twice.
    pub(super) fn next_engine_id(&mut self) -> String {
        self.attempts += 1;
        match self.attempts {
            1 => self.id.clone(),
            n => format!("{}-{n}", self.id),
        }
    }

    /// The id of the request, whatever becomes of it.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The renderer at `address` has answered.
    pub(super) fn rendered(&mut self, address: &str, took: Duration) {
        self.metrics.request.rendered(took);
        self.render = Some((address.to_owned(), took));
    }

    /// All media of the request are encoded.
    pub(super) fn encoded(&mut self, items: usize, legs: usize, took: Duration) {
        self.metrics.request.encoded(took);
        self.encoded = Some(Encoded { items, legs, took });
    }

    pub(super) fn prefill_at(&mut self, scheduled: &Scheduled) {
        self.prefill = Some(Stop::of(scheduled));
    }

    pub(super) fn prefill_done(&mut self, took: Duration) {
        if let Some(prefill) = &mut self.prefill {
            prefill.took = took;
        }
    }

    /// Decode computes the prompt; no prefill instance has a part in the answer.
    pub(super) fn without_prefill(&mut self) {
        self.prefill = None;
    }

    pub(super) fn decode_at(&mut self, scheduled: &Scheduled) {
        self.decode = Some(Stop::of(scheduled));
    }

    /// A leg failed; the request may yet succeed.
    pub(super) fn leg_failed(&self, error: &Error) {
        if LEG_LOG.now() {
            tracing::warn!(id = self.id, error = chain(error), "leg failed");
        }
    }

    /// The request is served otherwise than it should be.
    pub(super) fn fell_back(&self, fallback: Fallback, error: Option<&Error>) {
        self.metrics.request.fell_back(fallback);
        if FALLBACK_LOG.now() {
            let error = error.map(|e| chain(e));
            tracing::warn!(id = self.id, why = fallback.name(), error, "{}", fallback.consequence());
        }
    }

    /// A policy made KV transfer params that could harm the engine; they were not sent.
    pub(super) fn unsafe_handle(&self, policy: &str, danger: &Unsafe) {
        self.metrics.request.fell_back(Fallback::BadHandle);
        if FALLBACK_LOG.now() {
            tracing::warn!(id = self.id, policy, %danger, "KV transfer params that could harm an engine were not sent; decode computes the prompt itself");
        }
    }

    /// The head of the answer is on its way.
    pub fn answering(&mut self, status: StatusCode) {
        self.status = status.as_u16();
    }

    /// The first byte of the answer's body is on its way.
    pub(super) fn first_byte(&mut self) {
        if self.ttft.is_none() {
            let ttft = self.started.elapsed();
            // An error is no token.
            if self.generates && self.status < 400 {
                self.metrics.request.first_token(ttft);
            }
            self.ttft = Some(ttft);
        }
    }

    /// The answer ended as the engine meant it to.
    pub(super) fn finished(&mut self, usage: Option<Usage>) {
        self.class = if self.status >= 500 {
            ResultClass::EngineFailed
        } else if self.status >= 400 {
            ResultClass::Refused
        } else {
            ResultClass::Ok
        };
        if let Some(usage) = usage {
            self.metrics.request.used(usage);
            self.usage = Some(usage);
        }
    }

    /// The answer broke off: the engine died, or was silent for too long.
    pub(super) fn broke_off(&mut self, timed_out: bool, error: &dyn std::error::Error) {
        self.metrics.request.broke_off();
        self.class = if timed_out { ResultClass::TimedOut } else { ResultClass::EngineFailed };
        tracing::warn!(id = self.id, error = chain(error), "answer broke off");
    }

    /// The router answers with an error of its own.
    pub fn failed(&mut self, error: &Error) {
        self.status = error.status().as_u16();
        self.class = match error {
            Error::Client(_) => ResultClass::Refused,
            Error::Stalled { .. } => ResultClass::TimedOut,
            Error::Leg { source, .. } if source.is_timeout() => ResultClass::TimedOut,
            Error::Render(error) if error.is_timeout() => ResultClass::TimedOut,
            _ => ResultClass::EngineFailed,
        };
        match error {
            Error::Client(_) => tracing::debug!(id = self.id, error = chain(error), "request refused"),
            _ => tracing::warn!(id = self.id, status = self.status, error = chain(error), "request failed"),
        }
    }

    fn outcome(&self, duration: Duration) -> Outcome {
        let millis = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        let usage = self.usage.unwrap_or_default();
        Outcome {
            prefill: self.prefill.as_ref().map(|s| s.placement),
            decode: self.decode.as_ref().map(|s| s.placement),
            class: self.class,
            status: self.status,
            ttft_ms: self.ttft.map_or(0, millis),
            duration_ms: millis(duration),
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
        }
    }

    fn log(&self, duration: Duration) {
        let of =
            |stop: &Option<Stop>| stop.as_ref().map(|s| format!("{} ({}: {})", s.address, s.by, s.reason));
        let usage = self.usage.unwrap_or_default();
        tracing::info!(
            target: "access",
            id = self.id,
            client_id = ?self.client_id,
            endpoint = self.endpoint,
            status = self.status,
            outcome = ?self.class,
            attempts = self.attempts,
            render = self.render.as_ref().map(|(address, _)| address),
            media = self.encoded.as_ref().map(|e| e.items),
            encode_legs = self.encoded.as_ref().map(|e| e.legs),
            prefill = of(&self.prefill),
            decode = of(&self.decode),
            render_ms = self.render.as_ref().map(|(_, took)| millis(*took)),
            encode_ms = self.encoded.as_ref().map(|e| millis(e.took)),
            prefill_ms = self.prefill.as_ref().map(|s| millis(s.took)),
            ttft_ms = self.ttft.map(millis),
            total_ms = millis(duration),
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            cached_tokens = usage.cached_tokens,
            "request"
        );
    }
}

/// Milliseconds, to the microsecond.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl Drop for Account {
    fn drop(&mut self) {
        let duration = self.started.elapsed();
        match self.class {
            ResultClass::Cancelled => self.metrics.request.cancelled(),
            _ => self.metrics.request.answered(self.endpoint, self.status, duration),
        }
        if let Some(outcomes) = &self.outcomes {
            // A policy that can't keep up misses some; it must not hold requests up.
            let _ = outcomes.try_send(self.outcome(duration));
        }
        if tracing::enabled!(target: "access", tracing::Level::INFO) {
            self.log(duration);
        }
    }
}
