//! NIXL's push connector: decode gets the coordinates that prefill returned, or,
//! where both legs start together, those that the instance's labels name.

use std::collections::{HashMap, HashSet};

use edge_router_policy::connectors::labels::LabelError;
use edge_router_policy::connectors::nixl_push::{self, Coordinates};
use edge_router_policy::connectors::prefill_answer;
use edge_router_policy::{
    Handoff, Instance, InstanceId, Leg, Manifest, Pair, Placement, Policy, PolicyError, Request, log,
    parse_config,
};

/// Shapes the legs; leaves it to others where they go.
pub struct NixlPush {
    config: Config,
    coordinates: HashMap<InstanceId, Result<Coordinates, LabelError>>,
    /// Those of whom it was said that they lack a label.
    said: HashSet<InstanceId>,
}

/// See README.md for what it is good for.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    concurrent: bool,
}

impl Policy for NixlPush {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        Ok(Self { config: parse_config(config)?, coordinates: HashMap::new(), said: HashSet::new() })
    }

    fn manifest(&self) -> Manifest {
        let manifest = edge_router_policy::manifest!();
        if self.config.concurrent { manifest.with_handoff(Handoff::Concurrent) } else { manifest }
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        self.coordinates =
            instances.iter().map(|instance| (instance.id, Coordinates::of(instance))).collect();
        self.said.retain(|id| self.coordinates.contains_key(id));
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, pair: Pair) -> Result<Option<Leg>, PolicyError> {
        let leg = nixl_push::prefill_leg(request);
        Ok(Some(match self.named(pair) {
            Some((Ok(coordinates), placement)) if self.config.concurrent => {
                coordinates.pinned(leg, request, placement)
            }
            _ => leg,
        }))
    }

    fn merge_kv_params(
        &mut self,
        request: &Request<'_>,
        pair: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        if self.config.concurrent && kv_params.is_none() && !prefill_answer::has_arrived(request) {
            return Ok(Some(self.decode_leg_ahead(request, pair).unwrap_or_default()));
        }
        nixl_push::decode_leg(kv_params).map(Some).map_err(|error| PolicyError::new(error.to_string()))
    }
}

impl NixlPush {
    /// The decode leg that starts together with prefill's; `None` if too little
    /// is known for it.
    fn decode_leg_ahead(&mut self, request: &Request<'_>, pair: Pair) -> Option<Leg> {
        let placement = pair.prefill?;
        match self.coordinates.get(&placement.instance)? {
            Ok(coordinates) => coordinates.decode_leg(request, placement),
            Err(missing) => {
                if self.said.insert(placement.instance) {
                    log::warn(&format!("legs run one after the other: {missing}"));
                }
                None
            }
        }
    }

    fn named(&self, pair: Pair) -> Option<(&Result<Coordinates, LabelError>, Placement)> {
        let placement = pair.prefill?;
        Some((self.coordinates.get(&placement.instance)?, placement))
    }
}

edge_router_policy::export!(NixlPush);

#[cfg(test)]
mod tests;
