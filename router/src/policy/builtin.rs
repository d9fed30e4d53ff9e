//! The last policy of every chain: instances take turns, prefill is asked in the way of NIXL, and
//! decode gets what prefill returned. The same code as in the `round_robin` policy and the SDK's NIXL
//! connector, run natively.

use edge_router_policy::connectors::nixl;
use edge_router_policy::{
    Candidates, Instance, Leg, Manifest, Pair, Phase, Policy, PolicyError, Request, Target,
};
use round_robin::RoundRobin;

/// The built-in policy. It abstains from nothing.
pub struct BuiltIn(RoundRobin);

impl std::fmt::Debug for BuiltIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BuiltIn")
    }
}

impl Policy for BuiltIn {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        Ok(Self(RoundRobin::configure(config)?))
    }

    fn manifest(&self) -> Manifest {
        Manifest::new("builtin", env!("CARGO_PKG_VERSION"))
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        self.0.instances_changed(instances);
    }

    fn schedule(
        &mut self,
        phase: Phase,
        request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        self.0.schedule(phase, request, candidates)
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, _: Pair) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(nixl::prefill_leg(request)))
    }

    fn merge_kv_params(
        &mut self,
        _: &Request<'_>,
        _: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(nixl::decode_leg(kv_params)))
    }
}
