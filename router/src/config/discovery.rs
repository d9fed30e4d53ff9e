//! Instances, and where more of them are announced: from settings as typed to settings as used.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use edge_router_policy::Role;

use super::file::{InstanceTable, Settings};
use super::resolve::{ConfigError, positive, wrong};
use crate::fleet::{InstanceSpec, parse_address};

/// Where instances are announced while the router runs, beside the admin API.
#[derive(Debug, Clone)]
pub struct DiscoverySettings {
    /// A file with a roster.
    pub instances_file: Option<PathBuf>,
    /// Names, as `host:port`, of which each address is a prefill instance.
    pub prefill_dns: Vec<String>,
    /// The same for decode instances.
    pub decode_dns: Vec<String>,
    /// Time between look-ups of one name.
    pub dns_interval: Duration,
    /// Mooncake's bootstrap servers by the address of their prefill instance, both `host:port`.
    pub mooncake_bootstrap: BTreeMap<String, String>,
    /// Where engines register themselves.
    pub registration: Option<RegistrationSettings>,
}

/// The port for engines that register themselves.
#[derive(Debug, Clone, Copy)]
pub struct RegistrationSettings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// An engine that was not heard of for so long has left.
    pub ttl: Duration,
}

impl DiscoverySettings {
    /// Whether instances are announced anywhere.
    pub fn is_any(&self) -> bool {
        self.instances_file.is_some()
            || self.registration.is_some()
            || !self.prefill_dns.is_empty()
            || !self.decode_dns.is_empty()
    }
}

pub(super) fn discovery(settings: &Settings) -> Result<DiscoverySettings, ConfigError> {
    Ok(DiscoverySettings {
        instances_file: settings.instances_file.clone(),
        prefill_dns: names("prefill_dns", &settings.prefill_dns)?,
        decode_dns: names("decode_dns", &settings.decode_dns)?,
        dns_interval: positive("dns_interval_s", settings.dns_interval_s, 5, Duration::from_secs)?,
        mooncake_bootstrap: bootstrap(settings)?,
        registration: registration(settings)?,
    })
}

fn bootstrap(settings: &Settings) -> Result<BTreeMap<String, String>, ConfigError> {
    let pair = |text: &String| {
        let (instance, server) =
            text.split_once('=').ok_or_else(|| format!("'{text}' has no '='; give INSTANCE=SERVER"))?;
        Ok((parse_address(instance)?, parse_address(server)?))
    };
    let pairs = settings.mooncake_bootstrap.iter().map(pair).collect::<Result<_, _>>();
    pairs.map_err(|problem: String| wrong("mooncake_bootstrap", problem))
}

fn names(setting: &'static str, typed: &[String]) -> Result<Vec<String>, ConfigError> {
    let names: Result<Vec<_>, _> = typed.iter().map(|text| parse_address(text)).collect();
    names.map_err(|problem| wrong(setting, problem))
}

fn registration(settings: &Settings) -> Result<Option<RegistrationSettings>, ConfigError> {
    let ttl = positive("registration_ttl_s", settings.registration_ttl_s, 12, Duration::from_secs)?;
    let Some(text) = &settings.registration_listen else { return Ok(None) };
    let listen = text.parse().map_err(|_| {
        wrong("registration_listen", format!("'{text}': give ip:port, such as 0.0.0.0:36367"))
    })?;
    Ok(Some(RegistrationSettings { listen, ttl }))
}

/// The instances that are known from the start.
pub(super) fn instances(settings: &Settings) -> Result<Vec<InstanceSpec>, ConfigError> {
    let mut all = Vec::new();
    for (setting, role, addresses) in [
        ("prefill", Role::Prefill, &settings.prefill),
        ("decode", Role::Decode, &settings.decode),
        ("encode", Role::Encode, &settings.encode),
        ("render", Role::Render, &settings.render),
    ] {
        for text in addresses {
            let address = parse_address(text).map_err(|problem| wrong(setting, problem))?;
            all.push(InstanceSpec::new(role, address));
        }
    }
    for table in &settings.instance {
        all.push(instance(table)?);
    }
    Ok(all)
}

/// The instance that a table describes.
///
/// # Errors
/// [`ConfigError`] if its role, its address or a size can't be used.
pub fn instance(table: &InstanceTable) -> Result<InstanceSpec, ConfigError> {
    let role = match table.role.as_str() {
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        "both" => Role::Both,
        "encode" => Role::Encode,
        "render" => Role::Render,
        other => {
            let problem = format!("'{other}' is none of prefill, decode, both, encode, render");
            return Err(wrong("instance.role", problem));
        }
    };
    if table.dp_size == 0 || table.tp_size == 0 {
        return Err(wrong("instance", format!("{}: dp_size and tp_size must be above 0", table.address)));
    }
    Ok(InstanceSpec {
        role,
        address: parse_address(&table.address).map_err(|problem| wrong("instance.address", problem))?,
        dp_size: table.dp_size,
        tp_size: table.tp_size,
        labels: table.labels.clone().into_iter().collect(),
    })
}
