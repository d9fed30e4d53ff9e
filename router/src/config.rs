//! The router's settings as they are used: every value checked, every default filled in.

mod discovery;
pub mod file;
mod resolve;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use crate::fleet::{FleetSettings, InstanceSpec};
use crate::policy::{PolicySettings, PolicySource, SessionKey};

pub use discovery::{DiscoverySettings, RegistrationSettings, instance};
pub use resolve::{ConfigError, resolve};

/// What happens to a request when no prefill instance can take it, or all that were tried failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum WithoutPrefill {
    /// Decode computes the prompt itself; slower, counted and logged.
    #[default]
    Decode,
    /// The request is answered with an error.
    Reject,
}

/// What happens to a request with media when no encode instance can take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum WithoutEncode {
    /// The media go on as they are, and whoever computes the prompt encodes them; counted and logged.
    #[default]
    Raw,
    /// The request is answered with an error, also where no encode instance is known at all.
    Reject,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Time limits of a request.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the whole prefill leg.
    pub prefill: Duration,
    /// From sending the decode leg to the head of its answer.
    pub decode_head: Duration,
    /// For the first word of a stream whose engine fetches a KV cache, before the client is shown that it
    /// has begun; zero shows it at once.
    pub hold_opening: Duration,
    /// For one whole answer of a renderer.
    pub render: Duration,
    /// Between two frames of a streamed answer, at least; at most twice as long.
    pub stream_idle: Duration,
    /// For reading the client's body.
    pub client_body: Duration,
    /// For the client to take something of what is written to it.
    pub client_stall: Duration,
}

/// How long a KV handle may be used.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// How long prefill keeps the KV cache for decode (`kv_lease_duration`, 30 s in vLLM).
    pub duration: Duration,
    /// Kept free for what the router can't see: transit, and decode's own queue before admission.
    pub margin: Duration,
}

impl Lease {
    /// Of an instance whose labels may say otherwise: `kv_lease_s` and `kv_lease_margin_s`, in seconds. A
    /// label that is no number counts as absent; of a short lease at most half is margin.
    #[must_use]
    pub fn labelled(self, labels: &[(String, String)]) -> Self {
        let seconds = |name: &str| {
            let (_, value) = labels.iter().find(|(label, _)| label == name)?;
            value.trim().parse().ok().map(Duration::from_secs)
        };
        let duration = seconds("kv_lease_s").unwrap_or(self.duration);
        let margin = seconds("kv_lease_margin_s").unwrap_or(self.margin);
        Self { duration, margin: margin.min(duration / 2) }
    }
}

/// Reading back what decode kept.
#[derive(Debug, Clone, Copy)]
pub struct ReadbackSettings {
    /// Whether it is done.
    pub enabled: bool,
    /// How long after the turn (below decode's `decoder_kv_blocks_ttl`, 480 s in vLLM).
    pub ttl: Duration,
}

/// The models whose requests go through a renderer.
#[derive(Debug, Clone, Default)]
pub struct ThroughRender(Vec<String>);

impl ThroughRender {
    /// Those named; `*` is every model.
    pub fn of(models: &[String]) -> Self {
        Self(models.iter().map(|model| model.trim().to_owned()).filter(|model| !model.is_empty()).collect())
    }

    /// Whether a request for `model` goes through; one that names none does where every model does.
    pub fn covers(&self, model: Option<&str>) -> bool {
        self.0.iter().any(|covered| covered == "*" || Some(covered.as_str()) == model)
    }
}

/// Shutting down.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// Between the readiness probe's first refusal and the end of listening.
    pub delay: Duration,
    /// For running requests, from then on.
    pub timeout: Duration,
}

/// Everything that can be set.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// The fleet's limits.
    pub fleet: FleetSettings,
    /// Instances known from the start.
    pub instances: Vec<InstanceSpec>,
    /// Where others are announced.
    pub discovery: DiscoverySettings,
    /// Policies in the order of the chain.
    pub policies: Vec<PolicySource>,
    /// Limits of policies.
    pub policy: PolicySettings,
    /// Tokens of a block in the prefix index.
    pub prefix_block_tokens: usize,
    /// Where to look for a session key.
    pub session_keys: Arc<[SessionKey]>,
    /// What goes through renderers.
    pub through_render: ThroughRender,
    /// Longest body in bytes.
    pub max_body: usize,
    /// Time limits.
    pub timeouts: Timeouts,
    /// How often a request may be tried again on other instances.
    pub retries: u32,
    /// Without prefill.
    pub without_prefill: WithoutPrefill,
    /// Without encode.
    pub without_encode: WithoutEncode,
    /// Images that one leg to an encode instance may carry; 0 for any number.
    pub encode_max_batch: usize,
    /// Whether KV caches that nobody fetches are given back.
    pub release_unused_kv: bool,
    /// KV handles.
    pub lease: Lease,
    /// KV caches of last turns.
    pub readback: ReadbackSettings,
    /// Key of the admin API; `None` switches it off.
    pub admin_key: Option<String>,
    /// Sent to engines instead of the client's credentials.
    pub engine_auth: Option<HeaderValue>,
    /// Shutting down.
    pub drain: Drain,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_covers_every_model() {
        let through =
            |models: &[&str]| ThroughRender::of(&models.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(!through(&[]).covers(None) && !through(&[""]).covers(Some("")));
        assert!(through(&["a", "b"]).covers(Some("b")) && !through(&["a"]).covers(Some("b")));
        assert!(!through(&["a"]).covers(None));
        assert!(through(&["*"]).covers(None) && through(&["*"]).covers(Some("b")));
    }

    #[test]
    fn labels_say_how_long_an_instance_keeps_a_kv_cache() {
        let seconds = |lease: Lease| (lease.duration.as_secs(), lease.margin.as_secs());
        let usual = Lease { duration: Duration::from_secs(30), margin: Duration::from_secs(10) };
        let labelled = |labels: &[(&str, &str)]| {
            let labels: Vec<_> = labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            seconds(usual.labelled(&labels))
        };
        assert_eq!(labelled(&[]), (30, 10));
        assert_eq!(labelled(&[("kv_lease_s", "480"), ("kv_lease_margin_s", "20")]), (480, 20));
        assert_eq!(labelled(&[("kv_lease_s", "8")]), (8, 4));
        assert_eq!(labelled(&[("kv_lease_s", "soon")]), (30, 10));
    }
}
