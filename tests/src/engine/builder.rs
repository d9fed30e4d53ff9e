//! How an engine is set up.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::Engine;
use super::config::{Config, LoadFailurePolicy, Role};
use super::connector::Connector;

/// The settings of an engine to come. Each has the default of a real engine, or one that suits short tests.
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    config: Config,
}

impl EngineBuilder {
    pub(crate) fn new(role: Role) -> Self {
        Self { config: Config::new(role) }
    }

    /// The served model's name; `sim` by default.
    pub fn model(mut self, name: &str) -> Self {
        name.clone_into(&mut self.config.model);
        self
    }

    /// Tokens per KV block; 16 by default, at least 1.
    pub fn block_size(mut self, tokens: usize) -> Self {
        self.config.block_size = tokens.max(1);
        self
    }

    /// KV blocks per DP rank; 4096 by default.
    pub fn blocks(mut self, count: usize) -> Self {
        self.config.blocks = count;
        self
    }

    /// Prompt and answer together, in tokens; 32768 by default.
    pub fn max_model_len(mut self, tokens: usize) -> Self {
        self.config.max_model_len = tokens;
        self
    }

    /// Sequences that run at once on a DP rank (`--max-num-seqs`); 256 by default. Others wait.
    pub fn max_running(mut self, sequences: usize) -> Self {
        self.config.max_running = sequences;
        self
    }

    /// Waiting sequences on a DP rank beyond which a busy engine answers 503; no limit by default.
    pub fn max_queued(mut self, sequences: usize) -> Self {
        self.config.max_queued = Some(sequences);
        self
    }

    /// The loopback port; any free one by default.
    pub fn port(mut self, port: u16) -> Self {
        self.config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self
    }

    /// A port of the IPv6 loopback address.
    pub fn ipv6(mut self) -> Self {
        self.config.listen = SocketAddr::from((Ipv6Addr::LOCALHOST, self.config.listen.port()));
        self
    }

    /// Data-parallel ranks, each with its own blocks and engine id; 1 by default.
    pub fn dp_size(mut self, ranks: usize) -> Self {
        self.config.dp_size = ranks.max(1);
        self
    }

    /// Time per generated token; none by default. Not scaled.
    pub fn token_delay(mut self, delay: Duration) -> Self {
        self.config.token_delay = delay;
        self
    }

    /// Time to compute 1000 prompt tokens that no cache holds; none by default. Not scaled.
    pub fn prefill_per_1k(mut self, delay: Duration) -> Self {
        self.config.prefill_per_1k = delay;
        self
    }

    /// How long an idle connection stays open, to the letter; by default 5 s times the time scale.
    pub fn keep_alive(mut self, idle: Duration) -> Self {
        self.config.keep_alive = Some(idle);
        self
    }

    /// One factor for the engine's own timers: lease (30 s), heartbeat (5 s), handshake timeout (5 s), keep-alive
    /// (5 s), how long the process outlives a dead core (0.5 s), and those of the other connectors (engine contract
    /// §13.5).
    pub fn time_scale(mut self, factor: f64) -> Self {
        self.config.time_scale = factor;
        self
    }

    /// What happens when a KV cache cannot be fetched; [`LoadFailurePolicy::Fail`] by default.
    pub fn on_load_failure(mut self, policy: LoadFailurePolicy) -> Self {
        self.config.load_failure = policy;
        self
    }

    /// Requires `Authorization: Bearer <key>` below `/v1`.
    pub fn api_key(mut self, key: &str) -> Self {
        self.config.api_key = Some(key.to_owned());
        self
    }

    /// Does not object to requests that an engine of this role should never get.
    pub fn lenient(mut self) -> Self {
        self.config.strict = false;
        self
    }

    /// Runs without a KV connector: `kv_transfer_params` are ignored.
    pub fn without_connector(self) -> Self {
        self.connector(Connector::None)
    }

    /// The KV connector; [`Connector::NixlPull`] by default.
    pub fn connector(mut self, connector: Connector) -> Self {
        self.config.connector = connector;
        self
    }

    /// With [`Connector::NixlPull`]: a decode engine keeps what it has generated for the conversation's next turn,
    /// and a prefill engine reads it back (`bidirectional_kv_xfer`, engine contract §4.4).
    pub fn bidirectional(mut self) -> Self {
        self.config.bidirectional = true;
        self
    }

    /// With MoRIIO, on an engine of one role: it registers with the router whose `--registration-listen` is at
    /// `address` (host and port), every 3 s times the time scale, from its start to its end.
    pub fn register_with(mut self, address: &str) -> Self {
        self.config.register_with = Some(address.to_owned());
        self
    }

    /// Runs on the caller's runtime, whose clock a test may pause, and not on the one that all engines share. A
    /// [`crate::fleet::Fleet`] of such engines must be asserted quiescent by the test.
    pub fn on_this_runtime(mut self) -> Self {
        self.config.on_callers_runtime = true;
        self
    }

    /// Refuses tools with `tool_choice` `auto`, as an engine without a tool call parser does.
    pub fn without_auto_tools(mut self) -> Self {
        self.config.auto_tools = false;
        self
    }

    /// Reports cached tokens in `usage` (`--enable-prompt-tokens-details`).
    pub fn prompt_tokens_details(mut self) -> Self {
        self.config.prompt_tokens_details = true;
        self
    }

    /// The build: engines of different builds refuse each other's handshake.
    pub fn build(mut self, build: &str) -> Self {
        build.clone_into(&mut self.config.compatibility);
        self
    }

    /// Whether it deals in token ids (`--enable-scale-out`): renders, derenders and generates from ids; it does by
    /// default. Without, it answers 403 there.
    pub fn scale_out(mut self, enabled: bool) -> Self {
        self.config.scale_out = enabled;
        self
    }

    /// Deals in nothing but token ids: it has no tokeniser (`--tokens-only`).
    pub fn tokens_only(mut self) -> Self {
        self.config.tokens_only = true;
        self
    }

    /// Renders with a parser for the model's markup: each event of a stream is derendered from all tokens before.
    pub fn with_parser(mut self) -> Self {
        self.config.parser = true;
        self
    }

    /// Starts the engine on loopback; it stops when the handle is dropped.
    ///
    /// # Errors
    /// If no port can be had.
    pub async fn start(self) -> std::io::Result<Engine> {
        Engine::boot(self.config)
    }
}
