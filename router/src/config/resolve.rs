//! From settings as typed to settings as used. The only place with defaults.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use serde_json::value::RawValue;
use thiserror::Error;

use super::discovery::{discovery, instances};
use super::file::Settings;
use super::{Config, Drain, Lease, ReadbackSettings, ThroughRender, Timeouts};
use crate::fleet::{FleetSettings, HealthSettings};
use crate::policy::{PolicySettings, PolicySource, SessionKey};
use crate::upstream::PoolSettings;

/// A setting that can't be used. Names the setting and the remedy.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{setting}: {problem}")]
pub struct ConfigError {
    setting: &'static str,
    problem: String,
}

pub(super) fn wrong(setting: &'static str, problem: impl Into<String>) -> ConfigError {
    ConfigError { setting, problem: problem.into() }
}

/// Checks `settings` and fills in the defaults.
///
/// # Errors
/// The first setting that can't be used.
pub fn resolve(settings: &Settings) -> Result<Config, ConfigError> {
    let lease = lease(settings)?;
    Ok(Config {
        listen: listen(settings)?,
        fleet: fleet(settings)?,
        instances: instances(settings)?,
        discovery: discovery(settings)?,
        policies: policies(settings)?,
        policy: PolicySettings {
            deadline: positive("policy_deadline_ms", settings.policy_deadline_ms, 50, Duration::from_millis)?,
            max_memory: within("policy_memory_mib", settings.policy_memory_mib, 64, 2..=4096)? << 20,
        },
        prefix_block_tokens: within("prefix_block_tokens", settings.prefix_block_tokens, 32, 1..=65_536)?,
        session_keys: session_keys(settings)?.into(),
        through_render: ThroughRender::of(&settings.through_render),
        max_body: within("max_body_bytes", settings.max_body_bytes, 256 << 20, 1024..=64 << 30)?,
        timeouts: Timeouts {
            prefill: positive("prefill_timeout_s", settings.prefill_timeout_s, 600, Duration::from_secs)?,
            decode_head: positive("decode_timeout_s", settings.decode_timeout_s, 1800, Duration::from_secs)?,
            hold_opening: Duration::from_millis(settings.hold_opening_ms.unwrap_or(0)),
            render: positive("render_timeout_s", settings.render_timeout_s, 60, Duration::from_secs)?,
            stream_idle: positive(
                "stream_idle_timeout_s",
                settings.stream_idle_timeout_s,
                300,
                Duration::from_secs,
            )?,
            client_body: Duration::from_secs(120),
            client_stall: positive(
                "client_stall_timeout_s",
                settings.client_stall_timeout_s,
                120,
                Duration::from_secs,
            )?,
        },
        retries: settings.retries.unwrap_or(2),
        without_prefill: settings.without_prefill.unwrap_or_default(),
        without_encode: settings.without_encode.unwrap_or_default(),
        encode_max_batch: settings.encode_max_batch.unwrap_or(0),
        release_unused_kv: settings.release_unused_kv.unwrap_or(true),
        lease,
        readback: ReadbackSettings {
            enabled: settings.kv_readback.unwrap_or(false),
            ttl: positive("kv_readback_ttl_s", settings.kv_readback_ttl_s, 450, Duration::from_secs)?,
        },
        admin_key: settings.admin_api_key.clone().filter(|key| !key.is_empty()),
        engine_auth: engine_auth(settings)?,
        drain: Drain {
            delay: Duration::from_secs(settings.drain_delay_s.unwrap_or(0)),
            timeout: Duration::from_secs(settings.drain_timeout_s.unwrap_or(30)),
        },
    })
}

pub(super) fn positive(
    name: &'static str,
    value: Option<u64>,
    default: u64,
    unit: fn(u64) -> Duration,
) -> Result<Duration, ConfigError> {
    match value.unwrap_or(default) {
        0 => Err(wrong(name, "must be above 0")),
        n => Ok(unit(n)),
    }
}

fn within(
    name: &'static str,
    value: Option<usize>,
    default: usize,
    range: RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        return Ok(value);
    }
    Err(wrong(name, format!("must be {} to {}", range.start(), range.end())))
}

fn listen(settings: &Settings) -> Result<Vec<SocketAddr>, ConfigError> {
    if !settings.listen.is_empty() {
        let mut all = Vec::new();
        for text in &settings.listen {
            let found = text
                .to_socket_addrs()
                .map_err(|e| wrong("listen", format!("'{text}': {e}; give addr:port")))?;
            all.extend(found.take(1));
        }
        return Ok(all);
    }
    Ok(vec![match settings.port {
        Some(port) => (Ipv4Addr::UNSPECIFIED, port).into(),
        None => (Ipv4Addr::LOCALHOST, 8000).into(),
    }])
}

fn fleet(settings: &Settings) -> Result<FleetSettings, ConfigError> {
    let failures = settings.unhealthy_after.unwrap_or(3);
    if failures == 0 {
        return Err(wrong("unhealthy_after", "must be above 0"));
    }
    Ok(FleetSettings {
        pool: PoolSettings {
            connect_timeout: positive(
                "connect_timeout_ms",
                settings.connect_timeout_ms,
                3000,
                Duration::from_millis,
            )?,
            idle_timeout: positive("pool_idle_ms", settings.pool_idle_ms, 4000, Duration::from_millis)?,
            ..PoolSettings::default()
        },
        health: HealthSettings {
            interval: positive("probe_interval_ms", settings.probe_interval_ms, 2000, Duration::from_millis)?,
            timeout: positive("probe_timeout_ms", settings.probe_timeout_ms, 2000, Duration::from_millis)?,
            failures,
            cool_down: Duration::from_millis(settings.cool_down_ms.unwrap_or(5000)),
        },
        max_in_flight: settings.max_in_flight.unwrap_or(0),
        model: settings.model.clone().filter(|m| !m.is_empty()),
        prefix_capacity: within("prefix_capacity", settings.prefix_capacity, 400_000, 1..=100_000_000)?,
        engine_auth: engine_auth(settings)?,
    })
}

/// The header value for engines that have a key.
fn engine_auth(settings: &Settings) -> Result<Option<HeaderValue>, ConfigError> {
    let Some(key) = settings.engine_api_key.as_deref().filter(|key| !key.is_empty()) else { return Ok(None) };
    let mut value = HeaderValue::try_from(format!("Bearer {key}"))
        .map_err(|_| wrong("engine_api_key", "holds a character that no HTTP header can carry"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn lease(settings: &Settings) -> Result<Lease, ConfigError> {
    let duration = Duration::from_secs(settings.kv_lease_s.unwrap_or(30));
    let margin = Duration::from_secs(settings.kv_lease_margin_s.unwrap_or(10));
    if margin >= duration {
        return Err(wrong("kv_lease_margin_s", "must be below kv_lease_s, or no handle could ever be used"));
    }
    Ok(Lease { duration, margin })
}

fn session_keys(settings: &Settings) -> Result<Vec<SessionKey>, ConfigError> {
    let default =
        ["header:x-session-id", "field:session_id", "field:conversation_id", "field:user"].map(String::from);
    let typed = if settings.session_key.is_empty() { &default[..] } else { &settings.session_key };
    let parse = |text: &String| match text.split_once(':') {
        Some(("header", name)) if http::HeaderName::from_bytes(name.as_bytes()).is_ok() => {
            Ok(SessionKey::Header(name.to_owned()))
        }
        Some(("field", name)) if !name.is_empty() => Ok(SessionKey::Field(name.to_owned())),
        _ => Err(wrong("session_key", format!("'{text}' is neither header:NAME nor field:NAME"))),
    };
    typed.iter().map(parse).collect()
}

fn policies(settings: &Settings) -> Result<Vec<PolicySource>, ConfigError> {
    if let Some(flag) = settings.policy_config_flags.iter().find(|flag| !flag.contains('=')) {
        return Err(wrong("policy_config", format!("'{flag}' has no '='; give NAME={{\"key\":…}}")));
    }
    let dir = settings.policies_dir.clone().unwrap_or_else(|| PathBuf::from("policies"));
    let mut sources = Vec::new();
    for name in &settings.policy {
        let path = policy_path(&dir, name)?;
        let stem = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        sources.push(PolicySource { config: policy_config(settings, &stem)?, path });
    }
    let known = |name: &str| sources.iter().any(|s| s.path.file_stem().is_some_and(|stem| stem == name));
    let flags = settings.policy_config_flags.iter().filter_map(|f| f.split_once('=')).map(|(name, _)| name);
    if let Some(name) =
        settings.policy_config.keys().map(String::as_str).chain(flags).find(|name| !known(name))
    {
        return Err(wrong(
            "policy_config",
            format!("there is no policy '{name}'; it must be given by --policy as well"),
        ));
    }
    Ok(sources)
}

/// The file meant by `name`: a path if it looks like one, else a file in `dir`.
fn policy_path(dir: &Path, name: &str) -> Result<PathBuf, ConfigError> {
    let mut path = if name.contains('/') { PathBuf::from(name) } else { dir.join(name) };
    if path.extension().is_none() {
        path.set_extension("wasm");
    }
    if path.exists() {
        return Ok(path);
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    found.retain(|file| Path::new(file).extension().is_some_and(|e| e == "wasm"));
    found.sort();
    let found = if found.is_empty() {
        "no policies; `cargo xtask policies` builds them".into()
    } else {
        found.join(", ")
    };
    Err(wrong("policy", format!("{} does not exist; {} has {found}", path.display(), folder.display())))
}

fn policy_config(settings: &Settings, name: &str) -> Result<Option<String>, ConfigError> {
    let flags = settings.policy_config_flags.iter().filter_map(|flag| flag.split_once('='));
    for (policy, json) in flags {
        if policy == name {
            serde_json::from_str::<&RawValue>(json)
                .map_err(|e| wrong("policy_config", format!("{name}: not JSON: {e}")))?;
            return Ok(Some(json.to_owned()));
        }
    }
    let Some(table) = settings.policy_config.get(name) else { return Ok(None) };
    let json = serde_json::to_string(table).map_err(|e| wrong("policy_config", format!("{name}: {e}")))?;
    Ok(Some(json))
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
