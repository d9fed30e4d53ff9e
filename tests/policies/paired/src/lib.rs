//! A connector that must tell prefill who will come for the KV cache. Both legs carry the ids of the
//! pair, as `"x_pair": [prefill, decode]`: the router's tests show with it that a handle is only ever
//! given to the instance that it was made for.

use edge_router_policy::connectors::nixl;
use edge_router_policy::{Handoff, Leg, Manifest, Pair, Policy, PolicyError, Request};

/// NIXL, with both instances chosen first.
pub struct Paired;

fn with_pair(leg: Leg, pair: Pair) -> Result<Option<Leg>, PolicyError> {
    let (Some(prefill), Some(decode)) = (pair.prefill, pair.decode) else {
        return Err("the pair is not whole".into());
    };
    Ok(Some(leg.set("x_pair", format!("[{},{}]", prefill.instance, decode.instance))))
}

impl Policy for Paired {
    fn configure(_config: &str) -> Result<Self, PolicyError> {
        Ok(Self)
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!().with_handoff(Handoff::SerialPaired)
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, pair: Pair) -> Result<Option<Leg>, PolicyError> {
        with_pair(nixl::prefill_leg(request), pair)
    }

    fn merge_kv_params(
        &mut self,
        _request: &Request<'_>,
        pair: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        with_pair(nixl::decode_leg(kv_params), pair)
    }
}

edge_router_policy::export!(Paired);
