//! What an engine says of itself, in MessagePack.

use edge_router_policy::Role;
use serde::Deserialize;
use thiserror::Error;

use super::zmtp::ZmtpError;
use crate::discovery::roster::KV_LEASE;
use crate::fleet::{InstanceSpec, parse_address};

/// Seconds that MoRIIO keeps a KV cache that nobody fetches (its `defer_timeout`).
const MORIIO_LEASE: &str = "60";
/// Larger sizes are a mistake.
const MAX_SIZE: u32 = 65_536;
/// A host name has at most 253 bytes.
const MAX_ADDRESS: usize = 300;
/// A registration is flat.
const MAX_DEPTH: usize = 8;

/// Why a message registers nobody. Nothing that others wrote is said unescaped: it ends up in the log.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Protocol(#[from] ZmtpError),
    #[error("{0} frames; a registration is one")]
    Frames(usize),
    #[error("no registration: {0}")]
    Payload(#[from] rmp_serde::decode::Error),
    #[error("no registration: not a map")]
    NoMap,
    #[error("type {0:?} is neither P nor D")]
    Type(String),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("http_address must be host:port")]
    Address,
    #[error("{0} must be 1 to {MAX_SIZE}")]
    Size(&'static str),
    #[error("more engines than can be registered")]
    Full,
}

impl Refusal {
    /// For the metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Protocol(_) => "protocol",
            Self::Frames(_) => "frames",
            Self::Payload(_) | Self::NoMap => "payload",
            Self::Type(_) => "type",
            Self::Missing(_) | Self::Address | Self::Size(_) => "field",
            Self::Full => "full",
        }
    }
}

/// As MoRIIO sends it (`moriio_connector.py`); P2P-NCCL sends the first three.
#[derive(Debug, Deserialize)]
struct Payload {
    r#type: String,
    http_address: Option<String>,
    zmq_address: Option<String>,
    dp_size: Option<u32>,
    tp_size: Option<u32>,
    transfer_mode: Option<String>,
}

/// Who registers with a message of these frames; `None` if it is the greeting of an older engine.
pub(super) fn parse(frames: &[Vec<u8>]) -> Result<Option<InstanceSpec>, Refusal> {
    let [frame] = frames else { return Err(Refusal::Frames(frames.len())) };
    if !matches!(frame.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
        return Err(Refusal::NoMap);
    }
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(frame);
    deserializer.set_max_depth(MAX_DEPTH);
    let payload = Payload::deserialize(&mut deserializer)?;
    let role = match &*payload.r#type {
        "P" => Role::Prefill,
        "D" => Role::Decode,
        "HELLO" => return Ok(None),
        other => return Err(Refusal::Type(other.chars().take(16).collect())),
    };
    let address = payload.http_address.ok_or(Refusal::Missing("http_address"))?;
    if address.len() > MAX_ADDRESS {
        return Err(Refusal::Address);
    }
    let zmq_address = payload.zmq_address.ok_or(Refusal::Missing("zmq_address"))?;
    let mut labels = vec![("zmq_address".to_owned(), zmq_address)];
    if let Some(mode) = payload.transfer_mode {
        labels.push(("transfer_mode".to_owned(), mode));
        if role == Role::Prefill {
            labels.push((KV_LEASE.to_owned(), MORIIO_LEASE.to_owned()));
        }
    }
    Ok(Some(InstanceSpec {
        role,
        address: parse_address(&address).map_err(|_| Refusal::Address)?,
        dp_size: size("dp_size", payload.dp_size)?,
        tp_size: size("tp_size", payload.tp_size)?,
        labels,
    }))
}

fn size(name: &'static str, size: Option<u32>) -> Result<u32, Refusal> {
    match size.unwrap_or(1) {
        size @ 1..=MAX_SIZE => Ok(size),
        _ => Err(Refusal::Size(name)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Recorded from an engine with MoRIIO.
    pub(in super::super) const MORIIO: &str = "86a474797065a150ac687474705f61646472657373ae31302e302e302e\
        313a3230303035ab7a6d715f61646472657373d929686f73743a31302e302e302e312c68616e647368616b653a3633303\
        12c6e6f746966793a3631303035a764705f73697a6508a774705f73697a6501ad7472616e736665725f6d6f6465a45245\
        4144";
    /// Recorded from an engine with P2P-NCCL.
    pub(in super::super) const P2P_NCCL: &str = "83a474797065a150ac687474705f61646472657373ae31302e302e312e32\
        3a3230303031ab7a6d715f61646472657373ae31302e302e312e323a3231303031";

    pub(in super::super) fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.chars().map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap()).collect();
        digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
    }

    fn message(payload: &serde_json::Value) -> Vec<Vec<u8>> {
        vec![rmp_serde::to_vec_named(payload).unwrap()]
    }

    fn label(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn moriio_to_the_byte() {
        let expected = InstanceSpec {
            role: Role::Prefill,
            address: "10.0.0.1:20005".into(),
            dp_size: 8,
            tp_size: 1,
            labels: vec![
                label("zmq_address", "host:10.0.0.1,handshake:6301,notify:61005"),
                label("transfer_mode", "READ"),
                label("kv_lease_s", "60"),
            ],
        };
        assert_eq!(parse(&[bytes(MORIIO)]).unwrap(), Some(expected));
    }

    #[test]
    fn p2p_nccl_to_the_byte() {
        let expected = InstanceSpec {
            labels: vec![label("zmq_address", "10.0.1.2:21001")],
            ..InstanceSpec::new(Role::Prefill, "10.0.1.2:20001".into())
        };
        assert_eq!(parse(&[bytes(P2P_NCCL)]).unwrap(), Some(expected));
    }

    #[test]
    fn greetings_are_ignored_and_the_rest_is_refused_with_its_reason() {
        assert_eq!(parse(&message(&serde_json::json!({ "type": "HELLO" }))).unwrap(), None);
        let engine =
            serde_json::json!({ "type": "D", "http_address": "a:1", "zmq_address": "z", "more": [1] });
        assert!(parse(&message(&engine)).unwrap().is_some());
        for (key, value, said) in [
            ("type", "X".into(), "type \"X\" is neither P nor D"),
            ("type", "\n".into(), "type \"\\n\" is neither"),
            ("http_address", "a".into(), "http_address must be host:port"),
            ("http_address", format!("{}:1", "a".repeat(300)).into(), "http_address must be host:port"),
            ("http_address", ().into(), "http_address is missing"),
            ("zmq_address", ().into(), "zmq_address is missing"),
            ("dp_size", 0.into(), "dp_size must be 1 to 65536"),
            ("tp_size", 70_000.into(), "tp_size must be 1 to 65536"),
            ("tp_size", "8".into(), "no registration: "),
            ("dp_size", (-1).into(), "no registration: "),
        ] {
            let mut wrong = engine.clone();
            wrong[key] = value;
            let refusal = parse(&message(&wrong)).unwrap_err().to_string();
            assert!(refusal.starts_with(said), "{refusal}");
        }
        let one = message(&engine).remove(0);
        for frames in [vec![], vec![vec![]], vec![vec![], one.clone()], vec![one.clone(), one]] {
            assert!(parse(&frames).is_err());
        }
        let deep = [&[0x81, 0xa1, b'x'][..], &vec![0x91; 4000], &[0xc0]].concat();
        assert!(parse(&[deep]).is_err());
    }

    proptest! {
        #[test]
        fn random_frames_are_survived(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..4),
        ) {
            let _ = parse(&frames);
        }

        #[test]
        fn a_registration_with_random_bytes_in_it_is_survived(
            at in 0_usize..170, with in any::<[u8; 3]>(), cut in 0_usize..170,
        ) {
            let whole = bytes(MORIIO);
            let mut changed = whole.clone();
            let at = at.min(whole.len() - 3);
            changed[at..at + 3].copy_from_slice(&with);
            let _ = parse(&[changed]);
            prop_assert!(parse(&[whole[..cut.min(whole.len() - 1)].to_vec()]).is_err());
        }
    }
}
