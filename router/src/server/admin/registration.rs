//! Registering instances as the EPD proxy has it: `POST /instances`, `DELETE /instances?url=…` (engine
//! contract §7). Either may be said again without harm.

use edge_router_policy::Role;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ClientError;
use crate::fleet::{EC_ZMQ_ADDRS, InstanceSpec, Snapshot, parse_address, role_name};

/// `{"role": "encode", "url": "http://host:port"}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Registration {
    role: RegisteredRole,
    url: String,
    #[serde(default)]
    ec_zmq_addrs: Vec<String>,
    #[serde(default = "one")]
    dp_size: u32,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RegisteredRole {
    Encode,
    Prefill,
    Decode,
    PrefillDecode,
}

fn one() -> u32 {
    1
}

impl Registration {
    fn spec(self) -> Result<InstanceSpec, ClientError> {
        let role = match self.role {
            RegisteredRole::Encode => Role::Encode,
            RegisteredRole::Prefill => Role::Prefill,
            RegisteredRole::Decode => Role::Decode,
            RegisteredRole::PrefillDecode => Role::Both,
        };
        let address = parse_address(&self.url).map_err(ClientError::Invalid)?;
        if self.dp_size == 0 {
            return Err(ClientError::Invalid("dp_size must be above 0".into()));
        }
        let mut spec = InstanceSpec { dp_size: self.dp_size, ..InstanceSpec::new(role, address) };
        if !self.ec_zmq_addrs.is_empty() {
            if !matches!(role, Role::Prefill | Role::Both) {
                return Err(ClientError::Invalid("ec_zmq_addrs are those of who computes prompts".into()));
            }
            if self.ec_zmq_addrs.len() != self.dp_size as usize {
                return Err(ClientError::Invalid(
                    "ec_zmq_addrs needs one address for each of dp_size ranks".into(),
                ));
            }
            spec.labels.push((EC_ZMQ_ADDRS.into(), self.ec_zmq_addrs.join(",")));
        }
        Ok(spec)
    }
}

pub(super) fn register(app: &App, body: &[u8]) -> Result<Value, ClientError> {
    let registration: Registration = serde_json::from_slice(body).map_err(|error| {
        ClientError::Invalid(format!(
            "{error}; give {{\"role\": \"encode\", \"prefill\", \"decode\" or \"prefill_decode\", \
             \"url\": \"http://host:port\"}}"
        ))
    })?;
    let spec = registration.spec()?;
    if let Some(conflict) = conflict(&app.fleet.snapshot(), &spec) {
        return Err(ClientError::Conflict(conflict));
    }
    let (address, role) = (spec.address.clone(), role_name(spec.role));
    let is_new = app.discovery.register(spec);
    tracing::info!(instance = address, role, is_new, "instance registered");
    Ok(json!({ "registered": is_new }))
}

/// Why `spec` does not go with what there is.
fn conflict(fleet: &Snapshot, spec: &InstanceSpec) -> Option<String> {
    let split = |role| matches!(role, Role::Prefill | Role::Decode);
    fleet.instances.iter().map(|instance| instance.spec()).find_map(|known| {
        if known.address == spec.address {
            let role = role_name(known.role);
            return (known.role != spec.role)
                .then(|| format!("{} is registered as {role} already; remove it first", spec.address));
        }
        let mixed =
            (known.role == Role::Both && split(spec.role)) || (split(known.role) && spec.role == Role::Both);
        mixed.then(|| {
            let (address, role) = (&known.address, role_name(known.role));
            format!("prefill_decode does not go with prefill or decode: {address} is registered as {role}")
        })
    })
}

pub(super) fn unregister(app: &App, query: Option<&str>) -> Result<Value, ClientError> {
    let fields = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let url = fields.into_iter().find_map(|(name, value)| (name == "url").then_some(value));
    let url = url.ok_or_else(|| {
        ClientError::Invalid("url is missing: DELETE /instances?url=http://host:port".into())
    })?;
    let address = parse_address(&url).map_err(ClientError::Invalid)?;
    let removed = app.discovery.remove(&address, None).is_ok();
    if removed {
        tracing::info!(instance = address, "instance removed");
    }
    Ok(json!({ "removed": removed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<InstanceSpec, String> {
        let registration = serde_json::from_str::<Registration>(text).map_err(|error| error.to_string())?;
        registration.spec().map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_registered() {
        let found = spec(
            r#"{"role":"prefill_decode","url":"http://a:1/","dp_size":2,"ec_zmq_addrs":["tcp://a:2","tcp://a:3"]}"#,
        )
        .unwrap();
        assert_eq!((found.role, found.address.as_str(), found.dp_size), (Role::Both, "a:1", 2));
        assert_eq!(found.label(EC_ZMQ_ADDRS), Some("tcp://a:2,tcp://a:3"));
        for (text, said) in [
            (r#"{"url":"http://a:1"}"#, "missing field `role`"),
            (r#"{"role":"render","url":"a:1"}"#, "unknown variant `render`"),
            (r#"{"role":"encode","url":"a"}"#, "no port"),
            (r#"{"role":"encode","url":"a:1","dp_size":0}"#, "above 0"),
            (
                r#"{"role":"prefill","url":"a:1","dp_size":2,"ec_zmq_addrs":["tcp://a:2"]}"#,
                "one address for each",
            ),
            (r#"{"role":"decode","url":"a:1","ec_zmq_addrs":["tcp://a:2"]}"#, "who computes prompts"),
        ] {
            let error = spec(text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
