//! What an engine is started with.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use super::connector::Connector;

/// What an engine is for; only strict mode looks at it, as a real engine does either step when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes prompts for others (`kv_producer`).
    Prefill,
    /// Fetches KV caches and generates (`kv_consumer`).
    Decode,
    /// Either, request by request (`kv_both`).
    Both,
    /// Turns requests into token ids and back; runs no model (`vllm launch render`).
    Render,
    /// Encodes media for others (`ec_producer`), and generates nothing.
    Encode,
}

/// What a decode engine does when a KV cache cannot be fetched (`kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFailurePolicy {
    /// The request fails with a 500: vLLM's default.
    Fail,
    /// The prompt is computed locally.
    Recompute,
}

/// The settings of one engine; see [`super::EngineBuilder`] for what each one means.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) role: Role,
    pub(crate) model: String,
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
    pub(crate) max_model_len: usize,
    pub(crate) max_running: usize,
    pub(crate) max_queued: Option<usize>,
    pub(crate) listen: SocketAddr,
    pub(crate) dp_size: usize,
    pub(crate) token_delay: Duration,
    pub(crate) prefill_per_1k: Duration,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) time_scale: f64,
    pub(crate) load_failure: LoadFailurePolicy,
    pub(crate) api_key: Option<String>,
    pub(crate) strict: bool,
    pub(crate) connector: Connector,
    pub(crate) bidirectional: bool,
    pub(crate) register_with: Option<String>,
    pub(crate) on_callers_runtime: bool,
    pub(crate) auto_tools: bool,
    pub(crate) prompt_tokens_details: bool,
    pub(crate) compatibility: String,
    pub(crate) scale_out: bool,
    pub(crate) tokens_only: bool,
    pub(crate) parser: bool,
}

impl Config {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            model: "sim".to_owned(),
            block_size: 16,
            blocks: 4096,
            max_model_len: 32_768,
            max_running: 256,
            max_queued: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            dp_size: 1,
            token_delay: Duration::ZERO,
            prefill_per_1k: Duration::ZERO,
            keep_alive: None,
            time_scale: 1.0,
            load_failure: LoadFailurePolicy::Fail,
            api_key: None,
            strict: true,
            connector: Connector::default(),
            bidirectional: false,
            register_with: None,
            on_callers_runtime: false,
            auto_tools: true,
            prompt_tokens_details: false,
            compatibility: "sim-1".to_owned(),
            scale_out: true,
            tokens_only: false,
            parser: false,
        }
    }

    /// How long a finished prefill's blocks stay pinned (`kv_lease_duration`).
    pub(crate) fn lease(&self) -> Duration {
        self.scaled(30.0)
    }

    /// What a heartbeat leaves of the lease, at least.
    pub(crate) fn lease_extension(&self) -> Duration {
        self.scaled(20.0)
    }

    /// How often decode sends heartbeats for what it has not yet read.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.scaled(5.0)
    }

    /// How long decode waits for a peer's handshake.
    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.scaled(5.0)
    }

    /// How long the process outlives its dead core; real engines answer one or two more requests with a 500.
    pub(crate) fn death_throes(&self) -> Duration {
        self.scaled(0.5)
    }

    /// How long an idle connection stays open (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`).
    pub(crate) fn idle_timeout(&self) -> Duration {
        self.keep_alive.unwrap_or_else(|| self.scaled(5.0))
    }

    /// How long a decode engine keeps what it has generated for the next turn (`decoder_kv_blocks_ttl`).
    pub(crate) fn readback_lease(&self) -> Duration {
        self.scaled(480.0)
    }

    /// How close to its end prefill does not read a decode engine's blocks any more.
    pub(crate) fn readback_margin(&self) -> Duration {
        self.scaled(5.0)
    }

    /// How long prefill remembers the blocks that decode has registered (`push_registration_timeout`).
    pub(crate) fn push_registration(&self) -> Duration {
        self.scaled(480.0)
    }

    /// How long MoRIIO's prefill waits for decode (`defer_timeout`).
    pub(crate) fn moriio_defer(&self) -> Duration {
        self.scaled(60.0)
    }

    /// How long MoRIIO's decode waits for a read (`transfer_timeout`).
    pub(crate) fn moriio_transfer(&self) -> Duration {
        self.scaled(30.0)
    }

    /// How often MoRIIO's engines register (`PING_INTERVAL`).
    pub(crate) fn ping_interval(&self) -> Duration {
        self.scaled(3.0)
    }

    /// How long Mooncake's prefill keeps blocks, and decode waits for it (`VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`).
    pub(crate) fn mooncake_abort(&self) -> Duration {
        self.scaled(480.0)
    }

    /// What both ends of a handshake compare.
    pub(crate) fn handshake(&self) -> String {
        format!("{}/{}", self.compatibility, self.connector.dialect())
    }

    fn scaled(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds * self.time_scale)
    }
}
