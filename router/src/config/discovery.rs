//! Instances, and where more of them are announced: from settings as typed to settings as used.

use std::path::PathBuf;

use edge_router_policy::Role;

use super::file::{InstanceTable, Settings};
use super::resolve::{ConfigError, wrong};
use crate::fleet::{InstanceSpec, parse_address};

/// Where instances are announced while the router runs, beside the admin API.
#[derive(Debug, Clone, Default)]
pub struct DiscoverySettings {
    /// A file with a roster.
    pub instances_file: Option<PathBuf>,
}

impl DiscoverySettings {
    /// Whether instances are announced anywhere.
    pub fn is_any(&self) -> bool {
        self.instances_file.is_some()
    }
}

pub(super) fn discovery(settings: &Settings) -> DiscoverySettings {
    DiscoverySettings { instances_file: settings.instances_file.clone() }
}

/// The instances that are known from the start.
pub(super) fn instances(settings: &Settings) -> Result<Vec<InstanceSpec>, ConfigError> {
    let mut all = Vec::new();
    for (setting, role, addresses) in
        [("prefill", Role::Prefill, &settings.prefill), ("decode", Role::Decode, &settings.decode)]
    {
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
        other => return Err(wrong("instance.role", format!("'{other}' is none of prefill, decode, both"))),
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
