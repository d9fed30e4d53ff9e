//! Looks at the KV transfer params of a leg before they are sent, whoever made them.
//!
//! A NIXL decode engine dies of a `do_remote_prefill` without block ids (an assertion in its
//! scheduler), and parks a request for good when another key is missing (engine contract §13.4).
//! Connectors that are not NIXL name other keys; what they must bring is told by what is there.

use edge_router_policy::connectors::nixl;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::body::scan::is_truthy;

/// Why params must not reach an engine.
#[derive(Debug, Error)]
pub enum Unsafe {
    /// Not a JSON object; the engine answers 400 at best.
    #[error("not a JSON object")]
    NotAnObject,
    /// The role of a prefill engine; a decode engine would keep blocks that nobody fetches, or die.
    #[error("`do_remote_decode` is set on a decode leg")]
    AsksToKeep,
    /// The role of a decode engine; a pure producer dies of it.
    #[error("`do_remote_prefill` is set on a prefill leg")]
    AsksToFetch,
    /// Blocks of another engine: one that can't read them back waits for them for good.
    #[error("`remote_block_ids` names blocks on a prefill leg that reads nothing back")]
    ForeignBlocks,
    /// Something that decode can't do without is missing.
    #[error("incomplete: {0}")]
    Incomplete(String),
}

/// What tells the connectors apart, and what each of them can't do without. A key that is there with a
/// null is not absent: some engines only look whether it is there.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Keys<'a> {
    #[serde(borrow, deserialize_with = "present")]
    do_remote_decode: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    do_remote_prefill: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    transfer_id: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    remote_bootstrap_addr: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    transfer_mode: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    remote_engine_id: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    remote_block_ids: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    remote_request_id: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    remote_host: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    remote_port: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    tp_size: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

/// Checks `params`, the JSON text of a decode leg's `kv_transfer_params`. `reads` says that the decode
/// instance is known to read prefill's blocks itself (MoRIIO's READ).
///
/// # Errors
/// [`Unsafe`] if a decode engine could die of them or hang, or take nothing and not notice.
pub fn check_decode(params: &str, reads: bool) -> Result<(), Unsafe> {
    if params == "null" {
        return Ok(());
    }
    let keys = keys(params)?;
    if set(keys.do_remote_decode) {
        return Err(Unsafe::AsksToKeep);
    }
    if !set(keys.do_remote_prefill) {
        return Ok(());
    }
    if keys.remote_bootstrap_addr.is_some() {
        return mooncake(&keys);
    }
    if keys.transfer_id.is_some() {
        return moriio(&keys, reads);
    }
    if keys.transfer_mode.is_some_and(|mode| mode.get() == "\"push\"") {
        return nixl_push(&keys);
    }
    nixl::usable(params).map_err(|e| Unsafe::Incomplete(e.to_string()))
}

/// Checks `params`, the JSON text of a prefill leg's `kv_transfer_params`. `reads_back` says that they are
/// those of a decode instance that keeps a KV cache for this one.
///
/// # Errors
/// [`Unsafe`] if a prefill engine could die of them, or wait for good (engine contract §4.4, §5).
pub fn check_prefill(params: &str, reads_back: bool) -> Result<(), Unsafe> {
    if params == "null" {
        return Ok(());
    }
    let keys = keys(params)?;
    if set(keys.do_remote_prefill) {
        return Err(Unsafe::AsksToFetch);
    }
    if set(keys.remote_block_ids) && !reads_back {
        return Err(Unsafe::ForeignBlocks);
    }
    Ok(())
}

/// Whether a prefill leg with these params keeps its KV cache under a name that the router knows already,
/// so that the engine need not return any (engine contract §5).
pub fn keeps_by_name(params: &str) -> bool {
    keys(params).is_ok_and(|keys| set(keys.do_remote_decode) && set(keys.transfer_id))
}

/// Whether a prefill leg with these params asks the engine to keep its KV cache for decode.
pub fn asks_to_keep(params: &str) -> bool {
    keys(params).is_ok_and(|keys| set(keys.do_remote_decode))
}

fn keys(params: &str) -> Result<Keys<'_>, Unsafe> {
    if !params.trim_ascii_start().starts_with('{') {
        return Err(Unsafe::NotAnObject);
    }
    // A name that comes twice is an error here and the last one's value to an engine.
    serde_json::from_str(params).map_err(|_| Unsafe::NotAnObject)
}

fn set(value: Option<&RawValue>) -> bool {
    value.is_some_and(|v| is_truthy(v.get()))
}

/// One that is missing is an async load that nobody serves (engine contract §5).
fn mooncake(keys: &Keys<'_>) -> Result<(), Unsafe> {
    whole(&[
        ("remote_bootstrap_addr", keys.remote_bootstrap_addr),
        ("remote_engine_id", keys.remote_engine_id),
        ("transfer_id", keys.transfer_id),
    ])
}

/// The engine indexes two keys that may be null where prefill writes. Where decode reads, it would read
/// nothing and not notice (engine contract §3.4, §13.4).
fn moriio(keys: &Keys<'_>, reads: bool) -> Result<(), Unsafe> {
    let indexed = [("remote_engine_id", keys.remote_engine_id), ("remote_block_ids", keys.remote_block_ids)];
    whole(&[("transfer_id", keys.transfer_id)])?;
    match indexed.iter().find(|(_, value)| value.is_none_or(|v| reads && !set(Some(v)))) {
        Some((key, _)) => Err(missing(key)),
        None => Ok(()),
    }
}

/// The engine indexes all of them, and finds the block ids by itself (engine contract §4.3).
fn nixl_push(keys: &Keys<'_>) -> Result<(), Unsafe> {
    whole(&[
        ("remote_engine_id", keys.remote_engine_id),
        ("remote_request_id", keys.remote_request_id),
        ("remote_host", keys.remote_host),
        ("remote_port", keys.remote_port),
        ("tp_size", keys.tp_size),
    ])
}

fn whole(needed: &[(&str, Option<&RawValue>)]) -> Result<(), Unsafe> {
    needed.iter().find(|(_, value)| !set(*value)).map_or(Ok(()), |(key, _)| Err(missing(key)))
}

fn missing(key: &str) -> Unsafe {
    Unsafe::Incomplete(format!("`{key}` is missing"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    const WHOLE: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600,"tp_size":1}"#;

    const MORIIO: &str =
        r#"{"do_remote_prefill":true,"transfer_id":"tx","remote_engine_id":null,"remote_block_ids":null}"#;
    const MOONCAKE: &str = r#"{"do_remote_prefill":true,"transfer_id":"tx","remote_engine_id":"e","remote_bootstrap_addr":"http://h:8998"}"#;
    const PUSH: &str = r#"{"do_remote_prefill":true,"transfer_mode":"push","remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600,"tp_size":1}"#;

    fn without(params: &str, key: &str) -> String {
        let mut map: Map<String, Value> = serde_json::from_str(params).unwrap();
        map.remove(key);
        Value::from(map).to_string()
    }

    #[test]
    fn whole_params_pass() {
        assert!(check_decode(WHOLE, false).is_ok());
        for harmless in ["null", "{}", r#"{"first_tok":7}"#, r#"{"do_remote_prefill":false}"#] {
            assert!(check_decode(harmless, false).is_ok(), "{harmless}");
        }
    }

    #[test]
    fn every_lethal_form_is_caught() {
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
        lethal.extend(needed.map(|key| without(WHOLE, key)));
        for params in lethal {
            assert!(check_decode(&params, false).is_err(), "{params}");
        }
    }

    #[test]
    fn other_connectors_bring_other_keys() {
        for whole in [MORIIO, MOONCAKE, PUSH] {
            assert!(check_decode(whole, false).is_ok(), "{whole}");
        }
        for (whole, needed) in [
            (MORIIO, &["transfer_id", "remote_engine_id", "remote_block_ids"][..]),
            (MOONCAKE, &["transfer_id", "remote_engine_id"]),
            (PUSH, &["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"]),
        ] {
            for key in needed {
                assert!(check_decode(&without(whole, key), false).is_err(), "{key} of {whole}");
            }
        }
        assert!(check_decode(MORIIO, true).is_err(), "there is nothing to read");
        for empty in [r#""transfer_id":"""#, r#""transfer_id":null"#] {
            assert!(check_decode(&MOONCAKE.replace(r#""transfer_id":"tx""#, empty), false).is_err());
        }
    }

    #[test]
    fn prefill_is_never_asked_to_fetch() {
        assert!(check_prefill(r#"{"do_remote_decode":true,"do_remote_prefill":false}"#, false).is_ok());
        let turn2 = r#"{"do_remote_decode":true,"remote_block_ids":[[1]]}"#;
        assert!(check_prefill(turn2, false).is_err() && check_prefill(turn2, true).is_ok());
        for params in [r#"{"do_remote_decode":true,"do_remote_prefill":true}"#, PUSH, MOONCAKE, "[]"] {
            assert!(check_prefill(params, true).is_err(), "{params}");
        }
    }

    #[test]
    fn who_names_the_transfer_needs_no_answer() {
        assert!(keeps_by_name(r#"{"do_remote_decode":true,"transfer_id":"tx"}"#));
        assert!(!keeps_by_name(r#"{"do_remote_decode":true}"#) && !keeps_by_name("null"));
    }
}
