//! Strict mode: requests that an engine would accept, but that no router should send to an engine of this role and
//! connector.

use serde_json::{Map, Value};

use super::config::{Config, Role};
use super::connector::Connector;

/// What is wrong with a request that generates, one sentence each.
pub(crate) fn violations(config: &Config, body: &Value) -> Vec<String> {
    let none = Map::new();
    let params = body.get("kv_transfer_params").and_then(Value::as_object).unwrap_or(&none);
    let mut found = match config.role {
        Role::Prefill => prefill(&config.connector, config.bidirectional, body, params),
        Role::Decode => decode(&config.connector, params),
        Role::Both | Role::Encode | Role::Render => return Vec::new(),
    };
    if matches!(config.connector, Connector::Content(_)) && !params.is_empty() {
        found.push("an engine whose connector takes no params was sent some".to_owned());
    }
    found
}

fn prefill(
    connector: &Connector,
    bidirectional: bool,
    body: &Value,
    params: &Map<String, Value>,
) -> Vec<String> {
    let mut found = Vec::new();
    let by_params = !matches!(connector, Connector::None | Connector::Content(_));
    if by_params && !is_true(params, "do_remote_decode") {
        found.push("a prefill engine was asked to generate without do_remote_decode".to_owned());
    }
    if is_true(params, "do_remote_prefill") {
        found.push("a prefill engine was asked for do_remote_prefill".to_owned());
    }
    if body.get("stream").and_then(Value::as_bool) == Some(true) {
        found.push("a prefill engine was asked to stream: no answer of it can hold a handoff".to_owned());
    }
    let sampling = body.get("sampling_params").unwrap_or(body);
    for (key, needed) in [("max_tokens", true), ("max_completion_tokens", false)] {
        match sampling.get(key).filter(|value| !value.is_null()) {
            Some(value) if *value != 1 => {
                found.push(format!("a prefill engine was asked for {key} = {value}"));
            }
            None if needed => found.push(format!("a prefill engine was asked without {key}")),
            _ => {}
        }
    }
    if let Connector::MoriioRead | Connector::MoriioWrite | Connector::Mooncake = connector {
        if !is_true(params, "do_remote_decode") || !params.get("transfer_id").is_some_and(Value::is_string) {
            found.push("a prefill engine was sent no transfer_id".to_owned());
        }
        if sampling.get("min_tokens") != Some(&Value::from(1)) {
            // Else a first token that ends the text ends the handoff (engine contract §0.4).
            found.push(
                "a prefill engine that keeps nothing after a stop was asked without min_tokens = 1"
                    .to_owned(),
            );
        }
    }
    let told = params.iter().filter(|(key, value)| key.starts_with("remote_") && !value.is_null());
    let unexpected = told.filter(|(key, _)| !may_be_told(connector, bidirectional, key));
    found.extend(unexpected.map(|(key, value)| format!("a prefill engine was told {key} = {value}")));
    found
}

/// Whether a prefill engine has use for a key about its peer.
fn may_be_told(connector: &Connector, bidirectional: bool, key: &str) -> bool {
    match connector {
        // Who will come for the KV cache (§3.3, §3.5).
        Connector::MoriioRead | Connector::MoriioWrite => matches!(
            key,
            "remote_host"
                | "remote_handshake_port"
                | "remote_notify_port"
                | "remote_dp_size"
                | "remote_tp_size"
        ),
        // The earlier turn's decode (§4.4).
        Connector::NixlPull => bidirectional,
        _ => false,
    }
}

fn decode(connector: &Connector, params: &Map<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    if is_true(params, "do_remote_decode") {
        found.push("a decode engine was asked for do_remote_decode: its blocks stay pinned".to_owned());
    }
    if is_true(params, "do_remote_prefill") && matches!(connector, Connector::MoriioRead) {
        let blocks = params.get("remote_block_ids").and_then(Value::as_array);
        if blocks.is_none_or(Vec::is_empty) {
            found.push(
                "a decode engine was told to read a KV cache without remote_block_ids: it reads nothing"
                    .to_owned(),
            );
        }
    }
    found
}

fn is_true(params: &Map<String, Value>, key: &str) -> bool {
    params.get(key).and_then(Value::as_bool).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(role: Role, connector: Connector, body: &Value) -> Vec<String> {
        violations(&Config { connector, ..Config::new(role) }, body)
    }

    #[test]
    fn a_proper_prefill_request_is_no_violation() {
        let params = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_host": null});
        let body = json!({"max_tokens": 1, "stream": false, "kv_transfer_params": params});
        assert!(found(Role::Prefill, Connector::NixlPull, &body).is_empty());
        assert!(found(Role::Both, Connector::NixlPull, &json!({})).is_empty());
        assert!(found(Role::Decode, Connector::NixlPull, &json!({"stream": true})).is_empty());
    }

    #[test]
    fn each_wrong_field_is_named() {
        let params = json!({"do_remote_decode": true, "remote_host": "x"});
        let body = json!({"max_tokens": 2, "stream": true, "max_completion_tokens": 9, "kv_transfer_params": params});
        assert_eq!(found(Role::Prefill, Connector::NixlPull, &body).len(), 4);
        assert_eq!(found(Role::Prefill, Connector::NixlPull, &json!({"max_tokens": 1})).len(), 1);
        assert_eq!(found(Role::Decode, Connector::NixlPull, &body).len(), 1);
    }

    #[test]
    fn each_connector_has_its_own_keys() {
        let mut body = json!({
            "max_tokens": 1, "min_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": true, "transfer_id": "tx", "remote_host": "d"},
        });
        assert_eq!(found(Role::Prefill, Connector::MoriioWrite, &body), [""; 0]);
        assert_eq!(found(Role::Prefill, Connector::Mooncake, &body).len(), 1, "it does not ask who comes");
        assert_eq!(found(Role::Prefill, Connector::NixlPush, &body).len(), 1);
        assert_eq!(
            found(Role::Prefill, Connector::Content(crate::engine::SharedStore::default()), &body).len(),
            2
        );
        body["min_tokens"] = json!(0);
        assert_eq!(found(Role::Prefill, Connector::MoriioRead, &body).len(), 1);
        assert_eq!(found(Role::Prefill, Connector::None, &json!({"max_tokens": 1})), [""; 0]);
        let nothing = json!({"kv_transfer_params": {"do_remote_prefill": true, "remote_block_ids": null}});
        assert_eq!(found(Role::Decode, Connector::MoriioRead, &nothing).len(), 1);
        let readback = json!({
            "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true, "remote_block_ids": [[1]]},
        });
        assert_eq!(found(Role::Prefill, Connector::NixlPull, &readback).len(), 1);
        let both_ways = Config { bidirectional: true, ..Config::new(Role::Prefill) };
        assert_eq!(violations(&both_ways, &readback), [""; 0]);
    }
}
