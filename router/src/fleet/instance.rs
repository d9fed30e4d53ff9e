//! One engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use edge_router_policy::{InstanceId, Role};
use tokio_util::sync::CancellationToken;

use super::FleetSettings;
use super::health::Health;
use super::load::Load;
use crate::upstream::Pool;

/// What configuration, the admin API or discovery says of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceSpec {
    /// What it serves.
    pub role: Role,
    /// `host:port`.
    pub address: String,
    /// Data-parallel ranks, at least 1.
    pub dp_size: u32,
    /// Tensor-parallel size, at least 1.
    pub tp_size: u32,
    /// Free facts for policies.
    pub labels: Vec<(String, String)>,
}

impl InstanceSpec {
    /// An instance with one rank and no labels.
    pub fn new(role: Role, address: String) -> Self {
        Self { role, address, dp_size: 1, tp_size: 1, labels: Vec::new() }
    }

    /// The label `name`, if the instance has it.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// Checks `host:port`, with or without `http://` in front and `/` behind; the host may be a name, an
/// IPv4 address or an IPv6 address in brackets.
///
/// # Errors
/// A sentence that says what is wrong and how it should look.
pub fn parse_address(text: &str) -> Result<String, String> {
    let trimmed = text.trim();
    if trimmed.starts_with("https://") {
        return Err(format!("'{text}': engines are reached over plain HTTP, give host:port"));
    }
    let bare = trimmed.strip_prefix("http://").unwrap_or(trimmed).trim_end_matches('/');
    let wrong = |what: &str| format!("'{text}': {what}; give host:port, such as 10.0.0.1:8000 or [::1]:8000");
    let (host, port) = bare.rsplit_once(':').ok_or_else(|| wrong("no port"))?;
    port.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(|| wrong("bad port"))?;
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match bracketed {
        Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_ok() => {}
        Some(_) => return Err(wrong("bad IPv6 address")),
        None if host.contains(':') => return Err(wrong("an IPv6 address needs brackets")),
        None if host.is_empty() => return Err(wrong("no host")),
        None if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) => {
            return Err(wrong("bad host name"));
        }
        None => {}
    }
    Ok(bare.to_owned())
}

/// One engine, with its connections and its figures.
#[derive(Debug)]
pub struct Instance {
    id: InstanceId,
    spec: InstanceSpec,
    pool: Arc<Pool>,
    pub(super) health: Health,
    pub(super) load: Load,
    max_in_flight: u32,
    draining: AtomicBool,
    pub(super) retired: CancellationToken,
}

impl Instance {
    pub(super) fn new(id: InstanceId, spec: InstanceSpec, settings: &FleetSettings) -> Self {
        Self {
            id,
            pool: Pool::new(spec.address.clone(), settings.pool),
            health: Health::new(settings.health),
            load: Load::default(),
            max_in_flight: settings.max_in_flight,
            draining: AtomicBool::new(false),
            retired: CancellationToken::new(),
            spec,
        }
    }

    /// Its id, never used for another instance.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// What was said of it when it joined.
    pub fn spec(&self) -> &InstanceSpec {
        &self.spec
    }

    /// As policies are told of it.
    pub fn described(&self) -> edge_router_policy::Instance {
        edge_router_policy::Instance {
            id: self.id,
            role: self.spec.role,
            address: self.spec.address.clone(),
            dp_size: self.spec.dp_size,
            tp_size: self.spec.tp_size,
            labels: self.spec.labels.clone(),
        }
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.spec.address
    }

    /// Its connections.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Its health.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Its figures.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Whether new requests may be sent to it now.
    pub fn is_available(&self) -> bool {
        self.is_in_service() && !self.is_full()
    }

    /// Whether it is healthy and not being drained.
    pub fn is_in_service(&self) -> bool {
        self.health.is_healthy() && !self.is_draining()
    }

    /// Whether it would be available, had it not as many requests in flight as it may.
    pub fn is_saturated(&self) -> bool {
        self.is_in_service() && self.is_full()
    }

    fn is_full(&self) -> bool {
        self.max_in_flight != 0 && self.load.in_flight() >= self.max_in_flight
    }

    /// Stops or resumes sending it new requests.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    /// Whether it is being drained.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// It has left the fleet: ends its probes.
    pub(super) fn retire(&self) {
        self.retired.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_every_form_that_people_type() {
        for (typed, meant) in [
            ("10.0.0.1:8000", "10.0.0.1:8000"),
            ("http://engine-0.svc:8000/", "engine-0.svc:8000"),
            ("localhost:1", "localhost:1"),
            ("[::1]:8000", "[::1]:8000"),
        ] {
            assert_eq!(parse_address(typed).as_deref(), Ok(meant));
        }
        for typed in [
            "",
            "host",
            ":80",
            "::1:80",
            "[::1:80",
            "[zz]:80",
            "host:0",
            "host:99999",
            "a b:80",
            "https://h:1",
        ] {
            assert!(parse_address(typed).is_err(), "{typed}");
        }
    }
}
