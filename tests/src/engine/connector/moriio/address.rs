//! Where a MoRIIO engine is found: in the params, or in the request id (engine contract §3.2, §3.3).

use serde_json::{Map, Value};

use crate::engine::handoff::port;

/// The ports are those of DP rank 0; peers add the rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) handshake_port: u16,
    pub(super) notify_port: u16,
}

impl Address {
    /// As the params name it.
    pub(super) fn of(params: &Map<String, Value>) -> Option<Self> {
        Some(Self {
            host: params.get("remote_host")?.as_str()?.to_owned(),
            handshake_port: port(params.get("remote_handshake_port"))?,
            notify_port: port(params.get("remote_notify_port"))?,
        })
    }

    /// Prefill's, in `___prefill_addr_…___decode_addr_`.
    pub(super) fn prefill_in(id: &str) -> Option<Self> {
        let (_, rest) = id.split_once("___prefill_addr_")?;
        Self::parse(rest.split_once("___decode_addr_")?.0)
    }

    /// Decode's, in `___decode_addr_…_` and 32 hexadecimal digits, at the end or before a dash.
    pub(super) fn decode_in(id: &str) -> Option<Self> {
        let (_, rest) = id.split_once("___decode_addr_")?;
        let ends = rest.rmatch_indices('_').map(|(at, _)| at);
        let mut named = ends.filter_map(|at| {
            let (address, key) = (rest.get(..at)?, rest.get(at + 1..)?);
            let digits = key.split('-').next()?;
            let hex = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (hex && digits.len() == 32).then_some(address)
        });
        Self::parse(named.next()?)
    }

    /// As engines announce themselves: `host:<ip>,handshake:<port>,notify:<port>`.
    fn parse(text: &str) -> Option<Self> {
        let segment = |name: &str| {
            let mut segments = text.split(',').filter_map(|segment| segment.split_once(':'));
            segments.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        Some(Self {
            host: segment("host")?.to_owned(),
            handshake_port: segment("handshake")?.parse().ok()?,
            notify_port: segment("notify")?.parse().ok()?,
        })
    }

    pub(super) fn handshake(&self, dp_rank: u16) -> Option<u16> {
        self.handshake_port.checked_add(dp_rank)
    }

    pub(super) fn notify(&self, dp_rank: u16) -> Option<u16> {
        self.notify_port.checked_add(dp_rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_must_be_32_hexadecimal_digits() {
        let id =
            |key: &str| format!("cmpl-___prefill_addr_x___decode_addr_host:::1,handshake:3,notify:4_{key}");
        let decode = Address::decode_in(&id(&"0a".repeat(16)));
        assert_eq!(decode.map(|address| (address.host, address.handshake_port)), Some(("::1".to_owned(), 3)));
        assert!(Address::decode_in(&id(&format!("{:032x}-0-1234abcd", 5))).is_some());
        assert_eq!(Address::decode_in(&id("6f9619ff-8b86-d011-b42d-00cf4fc964ff")), None);
        assert_eq!(Address::prefill_in(&id("")), None, "no address");
    }
}
