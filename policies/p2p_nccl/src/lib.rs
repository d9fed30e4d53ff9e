//! The P2P-NCCL connector: a request id that names both peers, on both legs.

use std::collections::HashMap;

use edge_router_policy::connectors::labels::LabelError;
use edge_router_policy::connectors::p2p_nccl::{Peer, Transfer};
use edge_router_policy::{
    Handoff, Instance, InstanceId, Leg, Manifest, Pair, Placement, Policy, PolicyError, Request, parse_config,
};

/// Shapes the legs; leaves it to others where they go.
pub struct P2pNccl {
    peers: HashMap<InstanceId, Result<Peer, LabelError>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {}

impl Policy for P2pNccl {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        let Config {} = parse_config(config)?;
        Ok(Self { peers: HashMap::new() })
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!().with_handoff(Handoff::SerialPaired)
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        self.peers = instances.iter().map(|instance| (instance.id, Peer::of(instance))).collect();
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, pair: Pair) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(self.transfer(request, pair)?.prefill_leg(request)))
    }

    fn merge_kv_params(
        &mut self,
        request: &Request<'_>,
        pair: Pair,
        _: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(self.transfer(request, pair)?.decode_leg()))
    }
}

impl P2pNccl {
    fn transfer(&self, request: &Request<'_>, pair: Pair) -> Result<Transfer, PolicyError> {
        let (Some(prefill), Some(decode)) = (pair.prefill, pair.decode) else {
            return Err(
                "both instances must be chosen before prefill: a policy before this one in the chain \
                        asks for another handoff"
                    .into(),
            );
        };
        let (from, to) = (self.peer(prefill)?, self.peer(decode)?);
        Ok(Transfer::new(&request.id(), prefill.instance, from, to))
    }

    fn peer(&self, placement: Placement) -> Result<&Peer, PolicyError> {
        match self.peers.get(&placement.instance) {
            Some(peer) => peer.as_ref().map_err(|error| PolicyError::new(error.to_string())),
            None => Err(format!("instance {} has left the fleet", placement.instance).into()),
        }
    }
}

edge_router_policy::export!(P2pNccl);

#[cfg(test)]
mod tests {
    use edge_router_policy::testing::{self, Fleet};
    use edge_router_policy::{Edit, Phase};

    use super::*;

    type Decided = Result<Option<Leg>, PolicyError>;

    fn fleet() -> Fleet {
        let prefill = testing::fleet().prefill("10.0.1.2:20001").label("zmq_address", "10.0.1.2:21001");
        prefill.decode("10.0.1.3:20001").label("zmq_address", "10.0.1.3:22001")
    }

    fn pair() -> Pair {
        let at = |instance| Some(Placement { instance, dp_rank: None });
        Pair { prefill: at(1), decode: at(2) }
    }

    fn legs(fleet: Fleet, pair: Pair) -> [Decided; 2] {
        let mut policy = testing::load::<P2pNccl>("{}", fleet);
        let request = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
        let prefill = policy.policy().rewrite_prefill(&request.as_request(), pair);
        [prefill, policy.policy().merge_kv_params(&request.as_request(), pair, None)]
    }

    #[test]
    fn both_legs_carry_one_request_id_that_names_both_peers_and_no_params() {
        let [prefill, decode] = legs(fleet(), pair()).map(|leg| leg.unwrap().unwrap());
        assert_eq!(prefill.headers, decode.headers);
        let (name, id) = &prefill.headers[0];
        let peers = "___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_";
        assert!(name == "x-request-id" && id.starts_with(peers) && id.len() == peers.len() + 32, "{id}");
        assert!(prefill.edits.contains(&Edit::Set { name: "max_tokens".into(), value: "1".into() }));
        let names_params =
            |edit: &Edit| matches!(edit, Edit::Set { name, .. } if name == "kv_transfer_params");
        assert!(!prefill.edits.iter().any(names_params) && decode.edits.is_empty());
    }

    #[test]
    fn prefill_must_know_who_comes() {
        assert_eq!(P2pNccl::configure("{}").unwrap().manifest().handoff, Some(Handoff::SerialPaired));
        let serial = Pair { decode: None, ..pair() };
        for leg in legs(fleet(), serial) {
            assert!(leg.unwrap_err().to_string().contains("asks for another handoff"));
        }
    }

    #[test]
    fn what_is_wrong_with_the_fleet_is_told() {
        let unlabelled = testing::fleet().prefill("p:1").decode("d:1");
        for (fleet, said) in [
            (unlabelled, "instance p:1 has no label `zmq_address`: "),
            (testing::fleet(), "instance 1 has left the fleet"),
        ] {
            for leg in legs(fleet.clone(), pair()) {
                assert!(leg.unwrap_err().to_string().starts_with(said));
            }
        }
    }

    #[test]
    fn it_leaves_scheduling_to_others_and_takes_no_parameters() {
        let mut policy = testing::load::<P2pNccl>("{}", fleet());
        assert_eq!(policy.pick(Phase::Prefill, &testing::request("/v1/completions")), None);
        assert!(P2pNccl::configure(r#"{"x": 1}"#).is_err());
    }
}
