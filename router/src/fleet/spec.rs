//! What is said of an engine before it is met.

use edge_router_policy::Role;

/// Label of an instance that renders beside what else it does; one that only renders needs none.
pub const RENDER: &str = "render";

/// Label with the control addresses of an instance that encoders push to, one for each rank, with commas
/// between them.
pub const EC_ZMQ_ADDRS: &str = "ec_zmq_addrs";

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

    /// Whether it turns requests into token ids and back.
    pub fn renders(&self) -> bool {
        self.role == Role::Render
            || self.label(RENDER).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Lets it render beside what else it does, or not.
    pub fn set_renders(&mut self, renders: bool) {
        self.labels.retain(|(label, _)| label != RENDER);
        if renders {
            self.labels.push((RENDER.into(), "true".into()));
        }
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
