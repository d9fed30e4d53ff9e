//! Looks at the KV transfer params of a leg before they are sent, whoever made them.
//!
//! A NIXL decode engine dies of a `do_remote_prefill` without block ids (an assertion in its
//! scheduler), and parks a request for good when another key is missing (engine contract §13.4).
//! Connectors that are not NIXL name other keys; what they must bring is told by what is there, and by the
//! label with which MoRIIO's engines announce themselves: they die of what lacks a key or a peer (§3.3, §3.4).

use http::HeaderValue;
use memchr::memmem;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::body::scan::is_truthy;
use crate::fleet::InstanceSpec;

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

/// Where a leg goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Destination<'a> {
    /// The label of MoRIIO's engines: READ or WRITE.
    transfer_mode: Option<&'a str>,
    /// Whether the leg's request id names both engines.
    names_peers: bool,
}

impl<'a> Destination<'a> {
    /// An instance, to which the leg goes with this request id if it is not the router's own.
    pub fn new(instance: &'a InstanceSpec, request_id: Option<&HeaderValue>) -> Self {
        let named = |id: &HeaderValue| memmem::find(id.as_bytes(), b"___decode_addr_").is_some();
        Self { transfer_mode: instance.label("transfer_mode"), names_peers: request_id.is_some_and(named) }
    }

    /// Whether decode reads prefill's blocks itself.
    fn reads(&self) -> bool {
        self.transfer_mode == Some("READ")
    }
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
    remote_handshake_port: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    remote_notify_port: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    tp_size: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

/// Checks `params`, the JSON text of the `kv_transfer_params` of a decode leg that goes `to` an instance.
///
/// # Errors
/// [`Unsafe`] if a decode engine could die of them or hang, or take nothing and not notice.
pub fn check_decode(params: &str, to: &Destination<'_>) -> Result<(), Unsafe> {
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
    if keys.transfer_id.is_some() || to.transfer_mode.is_some() {
        return moriio(&keys, to, to.reads());
    }
    if keys.transfer_mode.is_some_and(|mode| mode.get() == "\"push\"") {
        return nixl_push(&keys);
    }
    nixl_pull(&keys)
}

/// What a prefill engine is asked to keep for decode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    #[default]
    Nothing,
    /// Its KV cache; its answer tells where that is.
    AndTells,
    /// Its KV cache, under a name that the router knows already, so that the engine need not return any
    /// (engine contract §5).
    ByName,
}

/// Checks `params`, the JSON text of the `kv_transfer_params` of a prefill leg that goes `to` an instance.
/// `reads_back` says that they are those of a decode instance that keeps a KV cache for this one.
///
/// # Errors
/// [`Unsafe`] if a prefill engine could die of them, or wait for good (engine contract §4.4, §5).
pub fn check_prefill(params: &str, to: &Destination<'_>, reads_back: bool) -> Result<Keeps, Unsafe> {
    if params == "null" {
        return Ok(Keeps::Nothing);
    }
    let keys = keys(params)?;
    if set(keys.do_remote_prefill) {
        return Err(Unsafe::AsksToFetch);
    }
    if set(keys.remote_block_ids) && !reads_back {
        return Err(Unsafe::ForeignBlocks);
    }
    if !set(keys.do_remote_decode) {
        return Ok(Keeps::Nothing);
    }
    if to.transfer_mode.is_some() {
        moriio(&keys, to, false)?;
    }
    Ok(if set(keys.transfer_id) { Keeps::ByName } else { Keeps::AndTells })
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

/// The engine indexes two keys that may be null unless it `reads`: then it would read nothing and not notice
/// (engine contract §3.4, §13.4). The other leg's engine is named by the params or by the request id (§3.3).
fn moriio(keys: &Keys<'_>, to: &Destination<'_>, reads: bool) -> Result<(), Unsafe> {
    let indexed = [("remote_engine_id", keys.remote_engine_id), ("remote_block_ids", keys.remote_block_ids)];
    whole(&[("transfer_id", keys.transfer_id)])?;
    if !to.names_peers {
        whole(&[
            ("remote_host", keys.remote_host),
            ("remote_handshake_port", keys.remote_handshake_port),
            ("remote_notify_port", keys.remote_notify_port),
        ])?;
    }
    match indexed.iter().find(|(_, value)| value.is_none_or(|v| reads && !set(Some(v)))) {
        Some((key, _)) => Err(missing(key)),
        None => Ok(()),
    }
}

/// Without block ids the engine dies; without a name, it parks the request (engine contract §13.4).
fn nixl_pull(keys: &Keys<'_>) -> Result<(), Unsafe> {
    let is_list =
        |ids: &RawValue| ids.get().starts_with('[') && ids.get().bytes().any(|b| b.is_ascii_digit());
    if !keys.remote_block_ids.is_some_and(is_list) {
        return Err(Unsafe::Incomplete("`remote_block_ids` names no block".to_owned()));
    }
    whole(&[
        ("remote_engine_id", keys.remote_engine_id),
        ("remote_request_id", keys.remote_request_id),
        ("remote_host", keys.remote_host),
        ("remote_port", keys.remote_port),
    ])?;
    let is_port = keys.remote_port.is_some_and(|port| port.get().parse::<u16>().is_ok());
    if is_port { Ok(()) } else { Err(Unsafe::Incomplete("`remote_port` is no port".to_owned())) }
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

    const MORIIO: &str = r#"{"do_remote_prefill":true,"transfer_id":"tx","remote_engine_id":null,"remote_block_ids":null,"remote_host":"h","remote_handshake_port":"1","remote_notify_port":2}"#;
    const MOONCAKE: &str = r#"{"do_remote_prefill":true,"transfer_id":"tx","remote_engine_id":"e","remote_bootstrap_addr":"http://h:8998"}"#;
    const PUSH: &str = r#"{"do_remote_prefill":true,"transfer_mode":"push","remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600,"tp_size":1}"#;

    const ANY: Destination<'_> = Destination { transfer_mode: None, names_peers: false };
    const READS: Destination<'_> = Destination { transfer_mode: Some("READ"), names_peers: false };
    const WRITTEN: Destination<'_> = Destination { transfer_mode: Some("WRITE"), names_peers: false };

    fn without(params: &str, key: &str) -> String {
        let mut map: Map<String, Value> = serde_json::from_str(params).unwrap();
        map.remove(key);
        Value::from(map).to_string()
    }

    #[test]
    fn whole_params_pass() {
        assert!(check_decode(WHOLE, &ANY).is_ok());
        for harmless in ["null", "{}", r#"{"first_tok":7}"#, r#"{"do_remote_prefill":false}"#] {
            assert!(check_decode(harmless, &ANY).is_ok(), "{harmless}");
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
            WHOLE.replace("[[1,2]]", "12"),
            WHOLE.replace("5600", "\"x\""),
            "[1]".to_owned(),
            "\"x\"".to_owned(),
        ];
        let needed =
            ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"];
        lethal.extend(needed.map(|key| without(WHOLE, key)));
        for params in lethal {
            assert!(check_decode(&params, &ANY).is_err(), "{params}");
        }
    }

    #[test]
    fn other_connectors_bring_other_keys() {
        for whole in [MORIIO, MOONCAKE, PUSH] {
            assert!(check_decode(whole, &ANY).is_ok(), "{whole}");
        }
        for (whole, needed) in [
            (MORIIO, &["transfer_id", "remote_engine_id", "remote_block_ids"][..]),
            (MORIIO, &["remote_host", "remote_handshake_port", "remote_notify_port"]),
            (MOONCAKE, &["transfer_id", "remote_engine_id"]),
            (PUSH, &["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"]),
        ] {
            for key in needed {
                assert!(check_decode(&without(whole, key), &ANY).is_err(), "{key} of {whole}");
            }
        }
        assert!(check_decode(MORIIO, &READS).is_err(), "there is nothing to read");
        assert!(check_decode(WHOLE, &WRITTEN).is_err(), "there is no transfer");
        let by_id = Destination { names_peers: true, ..WRITTEN };
        assert!(check_decode(&without(MORIIO, "remote_host"), &by_id).is_ok());
        for empty in [r#""transfer_id":"""#, r#""transfer_id":null"#] {
            assert!(check_decode(&MOONCAKE.replace(r#""transfer_id":"tx""#, empty), &ANY).is_err());
        }
    }

    #[test]
    fn prefill_is_never_asked_to_fetch() {
        let asked = r#"{"do_remote_decode":true,"do_remote_prefill":false}"#;
        assert!(check_prefill(asked, &ANY, false).is_ok());
        let turn2 = r#"{"do_remote_decode":true,"remote_block_ids":[[1]]}"#;
        assert!(check_prefill(turn2, &ANY, false).is_err() && check_prefill(turn2, &ANY, true).is_ok());
        for params in [r#"{"do_remote_decode":true,"do_remote_prefill":true}"#, PUSH, MOONCAKE, "[]"] {
            assert!(check_prefill(params, &ANY, true).is_err(), "{params}");
        }
        let told = MORIIO.replace("do_remote_prefill", "do_remote_decode");
        for to in [READS, WRITTEN] {
            assert!(check_prefill(asked, &to, false).is_err() && check_prefill(&told, &to, false).is_ok());
        }
    }

    #[test]
    fn who_names_the_transfer_needs_no_answer() {
        for (params, keeps) in [
            (r#"{"do_remote_decode":true,"transfer_id":"tx"}"#, Keeps::ByName),
            (r#"{"do_remote_decode":true}"#, Keeps::AndTells),
            (r#"{"transfer_id":"tx"}"#, Keeps::Nothing),
            ("null", Keeps::Nothing),
        ] {
            assert_eq!(check_prefill(params, &ANY, false).ok(), Some(keeps), "{params}");
        }
    }
}
