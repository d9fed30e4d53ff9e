//! Strict mode: requests that an engine would accept, but that no router should send to an engine of this role.

use serde_json::Value;

use super::config::Role;

/// What is wrong with a request that generates, one sentence each.
pub(crate) fn violations(role: Role, body: &Value) -> Vec<String> {
    let params = body.get("kv_transfer_params").unwrap_or(&Value::Null);
    let asks = |key: &str| params.get(key).and_then(Value::as_bool).unwrap_or(false);
    match role {
        Role::Prefill => prefill(body, params, asks("do_remote_decode")),
        Role::Decode if asks("do_remote_decode") => {
            vec!["a decode engine was asked for do_remote_decode: its blocks stay pinned".to_owned()]
        }
        Role::Decode | Role::Both | Role::Render => Vec::new(),
    }
}

fn prefill(body: &Value, params: &Value, asked: bool) -> Vec<String> {
    let mut violations = Vec::new();
    if !asked {
        violations.push("a prefill engine was asked to generate without do_remote_decode".to_owned());
    }
    if body.get("stream").and_then(Value::as_bool) == Some(true) {
        violations
            .push("a prefill engine was asked to stream: no answer of it can hold a handoff".to_owned());
    }
    let sampling = body.get("sampling_params").unwrap_or(body);
    for (key, needed) in [("max_tokens", true), ("max_completion_tokens", false)] {
        match sampling.get(key).filter(|value| !value.is_null()) {
            Some(value) if *value != 1 => {
                violations.push(format!("a prefill engine was asked for {key} = {value}"));
            }
            None if needed => violations.push(format!("a prefill engine was asked without {key}")),
            _ => {}
        }
    }
    let remote = params.as_object().into_iter().flatten().filter(|(key, _)| key.starts_with("remote_"));
    for (key, value) in remote.filter(|(_, value)| !value.is_null()) {
        violations.push(format!("a prefill engine was told {key} = {value}"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_proper_prefill_request_is_no_violation() {
        let params = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_host": null});
        let body = json!({"max_tokens": 1, "stream": false, "kv_transfer_params": params});
        assert!(violations(Role::Prefill, &body).is_empty());
        assert!(violations(Role::Both, &json!({})).is_empty());
        assert!(violations(Role::Decode, &json!({"stream": true})).is_empty());
    }

    #[test]
    fn each_wrong_field_is_named() {
        let params = json!({"do_remote_decode": true, "remote_host": "x"});
        let body = json!({"max_tokens": 2, "stream": true, "max_completion_tokens": 9, "kv_transfer_params": params});
        assert_eq!(violations(Role::Prefill, &body).len(), 4);
        assert_eq!(violations(Role::Prefill, &json!({"max_tokens": 1})).len(), 1);
        assert_eq!(violations(Role::Decode, &body).len(), 1);
    }
}
