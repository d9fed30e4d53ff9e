//! The settings as they are typed: on the command line, in the environment, or in a TOML file. One
//! struct serves all three, so that none can lack a setting of the others.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{LogFormat, WithoutEncode, WithoutPrefill};

/// Settings from one source; what is absent is left to the next.
#[derive(Debug, Clone, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Address to listen on; may be given more than once [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDR:PORT", env = "EDGE_ROUTER_LISTEN", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Port to listen on, on all interfaces; --listen is more exact
    #[arg(long, value_name = "PORT", env = "EDGE_ROUTER_PORT")]
    pub port: Option<u16>,
    /// The model that every instance must serve; an instance with another one gets no requests
    #[arg(short, long, env = "EDGE_ROUTER_MODEL")]
    pub model: Option<String>,
    /// Prefill instances, with spaces or commas between them
    #[arg(short, long, value_name = "HOST:PORT", num_args = 1.., env = "EDGE_ROUTER_PREFILL", value_delimiter = ',')]
    pub prefill: Vec<String>,
    /// Decode instances; an address in both lists serves both
    #[arg(short, long, value_name = "HOST:PORT", num_args = 1.., env = "EDGE_ROUTER_DECODE", value_delimiter = ',')]
    pub decode: Vec<String>,
    /// Encode instances: multimodal encoders that media are sent to before prefill
    #[arg(long, value_name = "HOST:PORT", num_args = 1.., env = "EDGE_ROUTER_ENCODE", value_delimiter = ',')]
    pub encode: Vec<String>,
    /// Renderers, engines without a GPU that turn requests into token ids and back (`vllm launch render`); a decode
    /// engine with --enable-scale-out can be one, too
    #[arg(long, value_name = "HOST:PORT", num_args = 1.., env = "EDGE_ROUTER_RENDER", value_delimiter = ',')]
    pub render: Vec<String>,
    /// Models whose chats and completions are turned into token ids by a renderer before their legs, and their
    /// answers back after them; `*` is every model
    #[arg(long, value_name = "MODEL", env = "EDGE_ROUTER_THROUGH_RENDER", value_delimiter = ',')]
    pub through_render: Vec<String>,
    /// Instances with all that can be said of them; only in the file.
    #[arg(skip)]
    pub instance: Vec<InstanceTable>,
    /// File of instance tables, TOML or JSON, that is read again whenever it changes
    #[arg(long, value_name = "FILE", env = "EDGE_ROUTER_INSTANCES_FILE")]
    pub instances_file: Option<PathBuf>,
    /// Name of which each address is a prefill instance, such as a headless service; may be given more than once
    #[arg(long, value_name = "NAME:PORT", env = "EDGE_ROUTER_PREFILL_DNS", value_delimiter = ',')]
    pub prefill_dns: Vec<String>,
    /// Name of which each address is a decode instance
    #[arg(long, value_name = "NAME:PORT", env = "EDGE_ROUTER_DECODE_DNS", value_delimiter = ',')]
    pub decode_dns: Vec<String>,
    /// Time between look-ups of such a name, in seconds [default: 5]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_DNS_INTERVAL_S")]
    pub dns_interval_s: Option<u64>,
    /// Bootstrap server of a prefill instance with Mooncake, which is asked for its engine ids; in place of the
    /// label bootstrap_address
    #[arg(
        long,
        value_name = "HOST:PORT=HOST:PORT",
        env = "EDGE_ROUTER_MOONCAKE_BOOTSTRAP",
        value_delimiter = ','
    )]
    pub mooncake_bootstrap: Vec<String>,
    /// Where engines with MoRIIO register themselves over ZeroMQ, such as 10.0.0.9:36367; anybody who reaches it
    /// can join the fleet [default: off]
    #[arg(long, value_name = "ADDR:PORT", env = "EDGE_ROUTER_REGISTRATION_LISTEN")]
    pub registration_listen: Option<String>,
    /// An engine that was not heard of for this long has left; they send every 3 s [default: 12]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_REGISTRATION_TTL_S")]
    pub registration_ttl_s: Option<u64>,
    /// Policy to ask, first to last; a bare name is looked up in --policies-dir [default: built in]
    #[arg(long, value_name = "NAME.wasm", env = "EDGE_ROUTER_POLICY", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Folder for bare policy names [default: policies]
    #[arg(long, value_name = "DIR", env = "EDGE_ROUTER_POLICIES_DIR")]
    pub policies_dir: Option<PathBuf>,
    /// Configuration of a policy as NAME={"key":…}; else NAME.json beside the policy is read
    #[arg(long = "policy-config", value_name = "NAME=JSON", env = "EDGE_ROUTER_POLICY_CONFIG")]
    #[serde(skip)]
    pub policy_config_flags: Vec<String>,
    /// Configurations by policy name; only in the file.
    #[arg(skip)]
    pub policy_config: BTreeMap<String, toml::Table>,
    /// Time limit for one call of a policy, in milliseconds [default: 50]
    #[arg(long, value_name = "MS", env = "EDGE_ROUTER_POLICY_DEADLINE_MS")]
    pub policy_deadline_ms: Option<u64>,
    /// Memory limit of one policy, in MiB [default: 64]
    #[arg(long, value_name = "MIB", env = "EDGE_ROUTER_POLICY_MEMORY_MIB")]
    pub policy_memory_mib: Option<usize>,
    /// Tokens of a block in the prefix index, estimated at 4 bytes each [default: 32]
    #[arg(long, value_name = "TOKENS", env = "EDGE_ROUTER_PREFIX_BLOCK_TOKENS")]
    pub prefix_block_tokens: Option<usize>,
    /// Blocks that the prefix index remembers, some 80 bytes each [default: 400000]
    #[arg(long, value_name = "BLOCKS", env = "EDGE_ROUTER_PREFIX_CAPACITY")]
    pub prefix_capacity: Option<usize>,
    /// Where a session key is looked for, first to last
    /// [default: header:x-session-id,field:session_id,field:conversation_id,field:user]
    #[arg(
        long,
        value_name = "header:NAME|field:NAME",
        env = "EDGE_ROUTER_SESSION_KEY",
        value_delimiter = ','
    )]
    pub session_key: Vec<String>,
    /// Longest request body in bytes [default: 268435456]
    #[arg(long, value_name = "BYTES", env = "EDGE_ROUTER_MAX_BODY_BYTES")]
    pub max_body_bytes: Option<usize>,
    /// Requests that may be in flight on one instance; 0 is no limit [default: 0]
    #[arg(long, value_name = "N", env = "EDGE_ROUTER_MAX_IN_FLIGHT")]
    pub max_in_flight: Option<u32>,
    /// How often a request may be tried again on other instances, before anything was answered [default: 2]
    #[arg(long, value_name = "N", env = "EDGE_ROUTER_RETRIES")]
    pub retries: Option<u32>,
    /// What to do when no prefill instance can take a request [default: decode]
    #[arg(long, value_enum, env = "EDGE_ROUTER_WITHOUT_PREFILL")]
    pub without_prefill: Option<WithoutPrefill>,
    /// What to do with media when no encode instance can take them [default: raw]
    #[arg(long, value_enum, env = "EDGE_ROUTER_WITHOUT_ENCODE")]
    pub without_encode: Option<WithoutEncode>,
    /// Images of a request that are sent to an encode instance together; 0 is no limit [default: 0]
    #[arg(long, value_name = "N", env = "EDGE_ROUTER_ENCODE_MAX_BATCH")]
    pub encode_max_batch: Option<usize>,
    /// Time limit for connecting to an instance, in milliseconds [default: 3000]
    #[arg(long, value_name = "MS", env = "EDGE_ROUTER_CONNECT_TIMEOUT_MS")]
    pub connect_timeout_ms: Option<u64>,
    /// Idle connections to instances are closed after this; keep it below the engines' keep-alive, 5 s in
    /// vLLM [default: 4000]
    #[arg(long, value_name = "MS", env = "EDGE_ROUTER_POOL_IDLE_MS")]
    pub pool_idle_ms: Option<u64>,
    /// Time limit for a prefill leg, and for an encode leg, in seconds [default: 600]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_PREFILL_TIMEOUT_S")]
    pub prefill_timeout_s: Option<u64>,
    /// Time limit for the head of decode's answer, in seconds [default: 1800]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_DECODE_TIMEOUT_S")]
    pub decode_timeout_s: Option<u64>,
    /// How long the opening of a stream may be held back, before the engine's first word, so that a KV cache
    /// that can't be fetched is still made good; 0 holds nothing back [default: 0]
    #[arg(long, value_name = "MS", env = "EDGE_ROUTER_HOLD_OPENING_MS")]
    pub hold_opening_ms: Option<u64>,
    /// Time limit for one answer of a renderer, in seconds [default: 60]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_RENDER_TIMEOUT_S")]
    pub render_timeout_s: Option<u64>,
    /// A stream without a frame for this long is ended with an error [default: 300]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_STREAM_IDLE_TIMEOUT_S")]
    pub stream_idle_timeout_s: Option<u64>,
    /// A client that takes nothing of its answer for this long is let go, and its engine with it [default: 120]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_CLIENT_STALL_TIMEOUT_S")]
    pub client_stall_timeout_s: Option<u64>,
    /// How long prefill keeps a KV cache for decode (kv_lease_duration) [default: 30]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_KV_LEASE_S")]
    pub kv_lease_s: Option<u64>,
    /// Part of the lease in which a handle is not used any more [default: 10]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_KV_LEASE_MARGIN_S")]
    pub kv_lease_margin_s: Option<u64>,
    /// Give KV caches that no decode instance fetches back to prefill, by sending decode a request for a
    /// model that nobody serves; else they stay until the lease ends [default: true]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", env = "EDGE_ROUTER_RELEASE_UNUSED_KV")]
    pub release_unused_kv: Option<bool>,
    /// Let prefill read back what decode kept of a conversation's last turn, where both are labelled
    /// bidirectional_kv_xfer and the prompt's tokens go on from it [default: false]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", env = "EDGE_ROUTER_KV_READBACK")]
    pub kv_readback: Option<bool>,
    /// How long after a turn it may be read back; decode must keep it for longer [default: 450]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_KV_READBACK_TTL_S")]
    pub kv_readback_ttl_s: Option<u64>,
    /// Time between probes of an instance [default: 2000]
    #[arg(long, value_name = "MS", env = "EDGE_ROUTER_PROBE_INTERVAL_MS")]
    pub probe_interval_ms: Option<u64>,
    /// Time limit for a probe [default: 2000]
    #[arg(long, value_name = "MS", env = "EDGE_ROUTER_PROBE_TIMEOUT_MS")]
    pub probe_timeout_ms: Option<u64>,
    /// Consecutive failures that take an instance out [default: 3]
    #[arg(long, value_name = "N", env = "EDGE_ROUTER_UNHEALTHY_AFTER")]
    pub unhealthy_after: Option<u32>,
    /// How long an instance stays out after failed requests [default: 5000]
    #[arg(long, value_name = "MS", env = "EDGE_ROUTER_COOL_DOWN_MS")]
    pub cool_down_ms: Option<u64>,
    /// Key of the admin API (/instances/add and so on), for the header x-api-key; without one the API is off
    #[arg(long, value_name = "KEY", env = "ADMIN_API_KEY", hide_env_values = true)]
    pub admin_api_key: Option<String>,
    /// Sent to instances as bearer token instead of the client's credentials
    #[arg(long, value_name = "KEY", env = "EDGE_ROUTER_ENGINE_API_KEY", hide_env_values = true)]
    pub engine_api_key: Option<String>,
    /// On SIGTERM, how long to go on listening while /readyz says no [default: 0]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_DRAIN_DELAY_S")]
    pub drain_delay_s: Option<u64>,
    /// On SIGTERM, how long running requests may take to end [default: 30]
    #[arg(long, value_name = "S", env = "EDGE_ROUTER_DRAIN_TIMEOUT_S")]
    pub drain_timeout_s: Option<u64>,
    /// What is logged, as in `info,edge_router::policy=debug` [default: info]
    #[arg(long, value_name = "FILTER", env = "EDGE_ROUTER_LOG")]
    pub log: Option<String>,
    /// How log lines look [default: text]
    #[arg(long, value_enum, env = "EDGE_ROUTER_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Log a line for each request: where it went, why, and how long it took
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        value_parser = clap::builder::BoolishValueParser::new(),
        env = "EDGE_ROUTER_ACCESS_LOG"
    )]
    pub access_log: Option<bool>,
}

/// One instance in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceTable {
    /// `prefill`, `decode`, `both`, `encode` or `render`.
    pub role: String,
    /// `host:port`.
    pub address: String,
    /// Data-parallel ranks.
    #[serde(default = "one")]
    pub dp_size: u32,
    /// Tensor-parallel size.
    #[serde(default = "one")]
    pub tp_size: u32,
    /// Facts for policies.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

fn list<T>(mine: Vec<T>, other: Vec<T>) -> Vec<T> {
    if mine.is_empty() { other } else { mine }
}

fn table<T>(mine: BTreeMap<String, T>, other: BTreeMap<String, T>) -> BTreeMap<String, T> {
    if mine.is_empty() { other } else { mine }
}

impl Settings {
    /// These settings, and where they are silent, the other's. Lists are not mixed.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            // A port that was typed is not overruled by addresses that were not.
            listen: if self.port.is_some() { self.listen } else { list(self.listen, other.listen) },
            port: self.port.or(other.port),
            model: self.model.or(other.model),
            prefill: list(self.prefill, other.prefill),
            decode: list(self.decode, other.decode),
            encode: list(self.encode, other.encode),
            render: list(self.render, other.render),
            through_render: list(self.through_render, other.through_render),
            instance: list(self.instance, other.instance),
            instances_file: self.instances_file.or(other.instances_file),
            prefill_dns: list(self.prefill_dns, other.prefill_dns),
            decode_dns: list(self.decode_dns, other.decode_dns),
            dns_interval_s: self.dns_interval_s.or(other.dns_interval_s),
            mooncake_bootstrap: list(self.mooncake_bootstrap, other.mooncake_bootstrap),
            registration_listen: self.registration_listen.or(other.registration_listen),
            registration_ttl_s: self.registration_ttl_s.or(other.registration_ttl_s),
            policy: list(self.policy, other.policy),
            policies_dir: self.policies_dir.or(other.policies_dir),
            policy_config_flags: list(self.policy_config_flags, other.policy_config_flags),
            policy_config: table(self.policy_config, other.policy_config),
            policy_deadline_ms: self.policy_deadline_ms.or(other.policy_deadline_ms),
            policy_memory_mib: self.policy_memory_mib.or(other.policy_memory_mib),
            prefix_block_tokens: self.prefix_block_tokens.or(other.prefix_block_tokens),
            prefix_capacity: self.prefix_capacity.or(other.prefix_capacity),
            session_key: list(self.session_key, other.session_key),
            max_body_bytes: self.max_body_bytes.or(other.max_body_bytes),
            max_in_flight: self.max_in_flight.or(other.max_in_flight),
            retries: self.retries.or(other.retries),
            without_prefill: self.without_prefill.or(other.without_prefill),
            without_encode: self.without_encode.or(other.without_encode),
            encode_max_batch: self.encode_max_batch.or(other.encode_max_batch),
            connect_timeout_ms: self.connect_timeout_ms.or(other.connect_timeout_ms),
            pool_idle_ms: self.pool_idle_ms.or(other.pool_idle_ms),
            prefill_timeout_s: self.prefill_timeout_s.or(other.prefill_timeout_s),
            decode_timeout_s: self.decode_timeout_s.or(other.decode_timeout_s),
            hold_opening_ms: self.hold_opening_ms.or(other.hold_opening_ms),
            render_timeout_s: self.render_timeout_s.or(other.render_timeout_s),
            stream_idle_timeout_s: self.stream_idle_timeout_s.or(other.stream_idle_timeout_s),
            client_stall_timeout_s: self.client_stall_timeout_s.or(other.client_stall_timeout_s),
            kv_lease_s: self.kv_lease_s.or(other.kv_lease_s),
            kv_lease_margin_s: self.kv_lease_margin_s.or(other.kv_lease_margin_s),
            release_unused_kv: self.release_unused_kv.or(other.release_unused_kv),
            kv_readback: self.kv_readback.or(other.kv_readback),
            kv_readback_ttl_s: self.kv_readback_ttl_s.or(other.kv_readback_ttl_s),
            probe_interval_ms: self.probe_interval_ms.or(other.probe_interval_ms),
            probe_timeout_ms: self.probe_timeout_ms.or(other.probe_timeout_ms),
            unhealthy_after: self.unhealthy_after.or(other.unhealthy_after),
            cool_down_ms: self.cool_down_ms.or(other.cool_down_ms),
            admin_api_key: self.admin_api_key.or(other.admin_api_key),
            engine_api_key: self.engine_api_key.or(other.engine_api_key),
            drain_delay_s: self.drain_delay_s.or(other.drain_delay_s),
            drain_timeout_s: self.drain_timeout_s.or(other.drain_timeout_s),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
            access_log: self.access_log.or(other.access_log),
        }
    }
}
