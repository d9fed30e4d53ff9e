//! NIXL's pull connector: prefill keeps its KV cache, and decode gets the
//! coordinates that prefill returned.

use std::borrow::Cow;
use std::collections::HashMap;

use edge_router_policy::connectors::nixl::{self, token_ids};
use edge_router_policy::{
    Instance, InstanceId, Leg, Manifest, Pair, Policy, PolicyError, Request, parse_config,
};

/// Shapes the legs; leaves it to others where they go.
pub struct Nixl {
    config: Config,
    addresses: HashMap<InstanceId, String>,
}

/// See README.md for what each is good for.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    rewrite_loopback_host: bool,
    reuse_token_ids: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { rewrite_loopback_host: true, reuse_token_ids: false }
    }
}

impl Policy for Nixl {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        Ok(Self { config: parse_config(config)?, addresses: HashMap::new() })
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!()
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        self.addresses = instances.iter().map(|instance| (instance.id, instance.address.clone())).collect();
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, _: Pair) -> Result<Option<Leg>, PolicyError> {
        let leg = nixl::prefill_leg(request);
        Ok(Some(if self.reuses_token_ids(request) { token_ids::asked_of_prefill(leg) } else { leg }))
    }

    fn merge_kv_params(
        &mut self,
        request: &Request<'_>,
        pair: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        let kv_params = kv_params.map(|params| self.with_routable_host(params, pair));
        let leg = nixl::decode_leg(kv_params.as_deref());
        Ok(Some(if self.reuses_token_ids(request) { token_ids::reused_by_decode(leg, request) } else { leg }))
    }
}

impl Nixl {
    fn reuses_token_ids(&self, request: &Request<'_>) -> bool {
        self.config.reuse_token_ids && token_ids::are_reusable(request)
    }

    fn with_routable_host<'a>(&self, kv_params: &'a str, pair: Pair) -> Cow<'a, str> {
        let address = pair.prefill.and_then(|prefill| self.addresses.get(&prefill.instance));
        match address.filter(|_| self.config.rewrite_loopback_host) {
            Some(address) => nixl::with_routable_host(kv_params, address),
            None => kv_params.into(),
        }
    }
}

edge_router_policy::export!(Nixl);

#[cfg(test)]
mod tests;
