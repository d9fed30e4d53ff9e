//! P2P-NCCL: both legs carry a request id that names both peers. Nothing is in
//! the bodies.
//!
//! vLLM has removed it; forms follow its last versions
//! (`kv_connector/v1/p2p/p2p_nccl_connector.py`). An engine fails a request
//! whose id names no peers, and a decode engine takes every prompt for one that
//! is sent to it.

use super::labels::{self, LabelError};
use super::single_token::{self, Token};
use super::{REQUEST_ID, agreed};
use crate::{Instance, InstanceId, Leg, Request};

const ZMQ_ADDRESS: &str = "zmq_address";
const REMEDY: &str = "engines that register bring it along (--registration-listen)";

/// One engine with the P2P-NCCL connector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    zmq_address: String,
}

impl Peer {
    /// Reads the label `zmq_address`, `ip:port` as the engine announces it.
    ///
    /// # Errors
    ///
    /// When it is missing or can't be read.
    pub fn of(instance: &Instance) -> Result<Self, LabelError> {
        let text = labels::required(instance, ZMQ_ADDRESS, REMEDY)?;
        if labels::host_and_port(text).is_none() {
            return Err(labels::malformed(instance, ZMQ_ADDRESS, text, "ip:port, as P2P-NCCL announces it"));
        }
        Ok(Self { zmq_address: text.to_owned() })
    }
}

/// One attempt at sending a KV cache from one instance to another.
#[derive(Debug)]
pub struct Transfer {
    request_id: String,
}

impl Transfer {
    /// A transfer for the attempt with this request id, from the prefill
    /// instance `prefill_id`.
    pub fn new(request_id: &str, prefill_id: InstanceId, prefill: &Peer, decode: &Peer) -> Self {
        let (from, to) = (&prefill.zmq_address, &decode.zmq_address);
        let key = agreed::key(request_id, prefill_id);
        Self { request_id: format!("___prefill_addr_{from}___decode_addr_{to}_{key}") }
    }

    /// The prefill leg: one token, not streamed.
    pub fn prefill_leg(&self, request: &Request<'_>) -> Leg {
        single_token::leg(request, Token::Any).header(REQUEST_ID, &self.request_id)
    }

    /// The decode leg: the client's body.
    pub fn decode_leg(&self) -> Leg {
        Leg::new().header(REQUEST_ID, &self.request_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::golden::{assert_leg, golden};
    use crate::testing;

    fn peer(label: Option<&str>) -> Result<Peer, String> {
        let fleet = testing::fleet().prefill("10.0.1.2:20001");
        let fleet = label.into_iter().fold(fleet, |fleet, value| fleet.label("zmq_address", value));
        Peer::of(&fleet.instances()[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_golden_legs() {
        let (prefill, decode) =
            (peer(Some("10.0.1.2:21001")).unwrap(), peer(Some("10.0.1.3:22001")).unwrap());
        let transfer = Transfer::new("request-1", 7, &prefill, &decode);
        let client = golden!("p2p_nccl/client");
        let request = testing::request("/v1/completions").json(client);
        let legs = [transfer.prefill_leg(&request.as_request()), transfer.decode_leg()];
        assert_leg(client, &legs[0], golden!("p2p_nccl/prefill_leg"));
        assert_leg(client, &legs[1], golden!("p2p_nccl/decode_leg"));
        let id =
            "___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_410468316850f2e56e1518836f7f33d1";
        for leg in legs {
            assert_eq!(leg.headers, [("x-request-id".to_owned(), id.to_owned())]);
        }
    }

    #[test]
    fn every_attempt_and_every_prefill_instance_has_an_id_of_its_own() {
        let peer = peer(Some("h:1")).unwrap();
        let id = |request, instance| Transfer::new(request, instance, &peer, &peer).request_id;
        assert_eq!(id("r", 1), id("r", 1), "both legs agree");
        assert!(id("r", 1) != id("r", 2) && id("r", 1) != id("r-2", 1));
    }

    #[test]
    fn a_label_that_is_missing_or_another_connectors_is_named() {
        let missing = peer(None).unwrap_err();
        assert!(missing.starts_with("instance 10.0.1.2:20001 has no label `zmq_address`: "), "{missing}");
        let moriio = peer(Some("host:10.0.1.2,handshake:6301,notify:61005")).unwrap_err();
        assert!(moriio.ends_with("must be ip:port, as P2P-NCCL announces it"), "{moriio}");
    }
}
