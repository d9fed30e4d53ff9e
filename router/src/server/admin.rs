//! The admin API: instances join, leave and are drained. Its `add` is the demo proxy's, body, header
//! and all; what it does to `/instances` itself is the EPD proxy's (`registration`).

mod registration;

use edge_router_policy::Role;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;

use super::route::AdminCall;
use super::{fanout, status};
use crate::app::App;
use crate::body::read::{ReadError, read_capped};
use crate::discovery::MembershipError;
use crate::error::ClientError;
use crate::fleet::{InstanceSpec, parse_address, role_name};

const MAX_BODY: usize = 64 * 1024;

/// `{"type": "prefill", "instance": "host:port"}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    /// `prefill`, `decode`, `both` or `encode`; may be left out except when adding.
    #[serde(rename = "type")]
    role: Option<String>,
    /// `host:port`.
    instance: String,
}

pub(super) async fn call(
    app: &App,
    call: AdminCall,
    request: Request<Incoming>,
) -> Result<(StatusCode, Value), ClientError> {
    authorize(app.config.admin_key.as_deref(), request.headers())?;
    if call == AdminCall::List {
        return Ok((StatusCode::OK, json!({ "instances": status::instances(app) })));
    }
    if call == AdminCall::Unregister {
        return registration::unregister(app, request.uri().query()).map(|answer| (StatusCode::OK, answer));
    }
    let body = read_capped(request.into_body(), MAX_BODY).await.map_err(|error| match error {
        ReadError::TooLarge { limit } => ClientError::Invalid(format!("body is larger than {limit} bytes")),
        ReadError::Transport(_) => ClientError::Incomplete,
    })?;
    if let AdminCall::FanOut(path) = call {
        return Ok(fanout::fan_out(app, path, body).await);
    }
    if call == AdminCall::Register {
        return registration::register(app, &body).map(|answer| (StatusCode::OK, answer));
    }
    change(app, call, &body).map(|answer| (StatusCode::OK, answer))
}

/// A call about one instance.
fn change(app: &App, call: AdminCall, body: &[u8]) -> Result<Value, ClientError> {
    let named: Named = serde_json::from_slice(body).map_err(|e| {
        ClientError::Invalid(format!(
            "{e}; give {{\"type\": \"prefill\" or \"decode\", \"instance\": \"host:port\"}}"
        ))
    })?;
    let address = parse_address(&named.instance).map_err(ClientError::Invalid)?;
    let role = named.role.as_deref().map(role).transpose()?;
    match call {
        AdminCall::Add => add(app, role, &address),
        AdminCall::Remove => remove(app, role, &address),
        AdminCall::Drain => drain(app, &address, true),
        AdminCall::Resume
        | AdminCall::List
        | AdminCall::Register
        | AdminCall::Unregister
        | AdminCall::FanOut(_) => drain(app, &address, false),
    }
}

/// The key is compared in constant time: how long it takes says nothing of how much was right.
fn authorize(key: Option<&str>, headers: &HeaderMap) -> Result<(), ClientError> {
    let Some(key) = key else {
        return Err(ClientError::Forbidden("the admin API is off; start the router with ADMIN_API_KEY set"));
    };
    let given = headers.get("x-api-key").map(http::HeaderValue::as_bytes).unwrap_or_default();
    if bool::from(given.ct_eq(key.as_bytes())) {
        Ok(())
    } else {
        Err(ClientError::Forbidden("header x-api-key is missing or wrong"))
    }
}

fn role(text: &str) -> Result<Role, ClientError> {
    match text {
        "prefill" => Ok(Role::Prefill),
        "decode" => Ok(Role::Decode),
        "both" => Ok(Role::Both),
        "encode" => Ok(Role::Encode),
        "render" => Ok(Role::Render),
        other => Err(ClientError::Invalid(format!(
            "type '{other}' is none of prefill, decode, both, encode, render"
        ))),
    }
}

fn add(app: &App, role: Option<Role>, address: &str) -> Result<Value, ClientError> {
    let role = role.ok_or_else(|| {
        ClientError::Invalid("type is missing: prefill, decode, both, encode or render".into())
    })?;
    let spec = InstanceSpec::new(role, address.to_owned());
    match app.discovery.add(spec) {
        Ok(()) => {
            let role = role_name(role);
            tracing::info!(instance = address, role, "instance added");
            Ok(json!({ "message": format!("Added {address} to {role} instances.") }))
        }
        Err(error) => Err(ClientError::Invalid(error.to_string())),
    }
}

fn remove(app: &App, role: Option<Role>, address: &str) -> Result<Value, ClientError> {
    app.discovery.remove(address, role).map_err(|e| unknown(&e))?;
    tracing::info!(instance = address, "instance removed");
    Ok(json!({ "message": format!("Removed {address}.") }))
}

fn drain(app: &App, address: &str, draining: bool) -> Result<Value, ClientError> {
    let snapshot = app.fleet.snapshot();
    let instance = snapshot.instances.iter().find(|i| i.address() == address);
    let instance = instance.ok_or_else(|| unknown(&MembershipError::Unknown(address.to_owned())))?;
    instance.set_draining(draining);
    let what = if draining { "Nothing new is sent to" } else { "Requests are sent again to" };
    Ok(json!({ "message": format!("{what} {address}."), "in_flight": instance.load().in_flight() }))
}

fn unknown(error: &MembershipError) -> ClientError {
    ClientError::Unknown(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_opens() {
        let with = |key: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static("x-api-key"),
                http::HeaderValue::from_static(key),
            )])
        };
        assert!(authorize(Some("secret"), &with("secret")).is_ok());
        for wrong in ["", "secre", "secret2", "SECRET"] {
            assert!(authorize(Some("secret"), &with(wrong)).is_err(), "{wrong}");
        }
        assert!(authorize(Some("secret"), &HeaderMap::new()).is_err());
        assert!(authorize(None, &with("")).is_err());
    }
}
