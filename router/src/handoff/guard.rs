//! Looks at the KV transfer params of a decode leg before they are sent, whoever made them.
//!
//! A NIXL decode engine dies of a `do_remote_prefill` without block ids (an assertion in its
//! scheduler), and parks a request for good when another key is missing (engine contract §13.4).
//! Connectors that are not NIXL name other keys; what they must bring is checked by what is there.

use edge_router_policy::connectors::nixl;
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::body::scan::is_truthy;

/// Why params must not reach a decode engine.
#[derive(Debug, Error)]
pub enum Unsafe {
    /// Not a JSON object; the engine answers 400 at best.
    #[error("not a JSON object")]
    NotAnObject,
    /// The role of a prefill engine; a decode engine would keep blocks that nobody fetches, or die.
    #[error("`do_remote_decode` is set on a decode leg")]
    RoleCrossed,
    /// Something that decode can't do without is missing.
    #[error("incomplete: {0}")]
    Incomplete(String),
}

/// The keys that tell what is being asked of the engine.
#[derive(Deserialize)]
struct Roles<'a> {
    #[serde(borrow)]
    do_remote_decode: Option<&'a RawValue>,
    #[serde(borrow)]
    do_remote_prefill: Option<&'a RawValue>,
    /// By these two other connectors find the peer. With one of them the block ids may be absent.
    #[serde(borrow)]
    transfer_id: Option<&'a RawValue>,
    #[serde(borrow)]
    remote_bootstrap_addr: Option<&'a RawValue>,
}

/// Checks `params`, the JSON text of a decode leg's `kv_transfer_params`.
///
/// # Errors
/// [`Unsafe`] if a decode engine could die of them or hang.
pub fn check(params: &str) -> Result<(), Unsafe> {
    if params == "null" {
        return Ok(());
    }
    if !params.trim_ascii_start().starts_with('{') {
        return Err(Unsafe::NotAnObject);
    }
    let roles: Roles<'_> = serde_json::from_str(params).map_err(|_| Unsafe::NotAnObject)?;
    let set = |value: Option<&RawValue>| value.is_some_and(|v| is_truthy(v.get()));
    if set(roles.do_remote_decode) {
        return Err(Unsafe::RoleCrossed);
    }
    let other_connector = set(roles.transfer_id) || set(roles.remote_bootstrap_addr);
    if !set(roles.do_remote_prefill) || other_connector {
        return Ok(());
    }
    nixl::usable(params).map_err(|e| Unsafe::Incomplete(e.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    const WHOLE: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600,"tp_size":1}"#;

    #[test]
    fn whole_params_pass() {
        assert!(check(WHOLE).is_ok());
        for harmless in ["null", "{}", r#"{"first_tok":7}"#, r#"{"do_remote_prefill":false}"#] {
            assert!(check(harmless).is_ok(), "{harmless}");
        }
    }

    #[test]
    fn every_lethal_form_is_caught() {
        let without = |key: &str| {
            let mut map: Map<String, Value> = serde_json::from_str(WHOLE).unwrap();
            map.remove(key);
            Value::from(map).to_string()
        };
        let mut lethal = vec![
            r#"{"do_remote_prefill":true}"#.to_owned(),
            r#"{"do_remote_prefill":1}"#.to_owned(),
            WHOLE.replace("[[1,2]]", "[]"),
            WHOLE.replace("[[1,2]]", "[[]]"),
            WHOLE.replace("[[1,2]]", "null"),
            WHOLE.replace("\"do_remote_decode\":false", "\"do_remote_decode\":true"),
            r#"{"do_remote_decode":false,"do_remote_decode":true}"#.to_owned(),
            "[1]".to_owned(),
            "\"x\"".to_owned(),
        ];
        let needed =
            ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"];
        lethal.extend(needed.map(without));
        for params in lethal {
            assert!(check(&params).is_err(), "{params}");
        }
    }

    #[test]
    fn other_connectors_bring_other_keys() {
        assert!(check(r#"{"do_remote_prefill":true,"transfer_id":"tx-1","remote_block_ids":null}"#).is_ok());
    }
}
