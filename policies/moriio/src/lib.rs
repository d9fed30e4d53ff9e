//! The MoRIIO connector, READ and WRITE: prefill is told which decode instance
//! will take the KV cache, decode gets what prefill returned. In WRITE mode both
//! may start together.

use std::collections::HashMap;

use edge_router_policy::connectors::moriio::{LabelError, Peer, Transfer};
use edge_router_policy::connectors::{plain, prefill_answer};
use edge_router_policy::{
    Handoff, Instance, InstanceId, Leg, Manifest, Pair, Placement, Policy, PolicyError, Request, parse_config,
};

/// Shapes the legs; leaves it to others where they go.
pub struct Moriio {
    config: Config,
    peers: HashMap<InstanceId, Result<Peer, LabelError>>,
}

/// See README.md for what each is good for.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    address_by_request_id: bool,
    concurrent: bool,
}

impl Policy for Moriio {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        Ok(Self { config: parse_config(config)?, peers: HashMap::new() })
    }

    fn manifest(&self) -> Manifest {
        let handoff = if self.config.concurrent { Handoff::Concurrent } else { Handoff::SerialPaired };
        edge_router_policy::manifest!().with_handoff(handoff)
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        self.peers = instances.iter().map(|instance| (instance.id, Peer::of(instance))).collect();
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, pair: Pair) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(match self.transfer(request, pair) {
            Ok(transfer) => self.addressed(&transfer, transfer.prefill_leg(request)),
            // Not an error: the next policy in the chain may be for another
            // connector, and a MoRIIO engine that is asked in that one's way
            // can die of it. The error is told when the legs are merged.
            Err(_) => plain::prefill_leg(request),
        }))
    }

    fn merge_kv_params(
        &mut self,
        request: &Request<'_>,
        pair: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        let transfer = self.transfer(request, pair)?;
        let starts_together = self.config.concurrent && !prefill_answer::has_arrived(request);
        let leg = match kv_params {
            Some(kv_params) => Some(transfer.decode_leg(kv_params).map_err(told)?),
            None if starts_together => transfer.decode_leg_ahead(),
            None => None,
        };
        Ok(Some(leg.map(|leg| self.addressed(&transfer, leg)).unwrap_or_default()))
    }
}

impl Moriio {
    fn transfer(&self, request: &Request<'_>, pair: Pair) -> Result<Transfer<'_>, PolicyError> {
        let (Some(prefill), Some(decode)) = (pair.prefill, pair.decode) else {
            return Err(
                "both instances must be chosen before prefill: a policy before this one in the chain \
                        asks for another handoff"
                    .into(),
            );
        };
        let (from, to) = (self.peer(prefill)?, self.peer(decode)?);
        Transfer::new(&request.id(), (prefill, from), (decode, to)).map_err(told)
    }

    fn peer(&self, placement: Placement) -> Result<&Peer, PolicyError> {
        match self.peers.get(&placement.instance) {
            Some(peer) => peer.as_ref().map_err(told),
            None => Err(format!("instance {} has left the fleet", placement.instance).into()),
        }
    }

    fn addressed(&self, transfer: &Transfer<'_>, leg: Leg) -> Leg {
        if self.config.address_by_request_id {
            leg.header("x-request-id", transfer.request_id())
        } else {
            leg
        }
    }
}

fn told(error: impl std::error::Error) -> PolicyError {
    PolicyError::new(error.to_string())
}

edge_router_policy::export!(Moriio);

#[cfg(test)]
mod tests;
