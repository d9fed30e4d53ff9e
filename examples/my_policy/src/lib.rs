//! Decode keeps clear of instances whose KV cache is nearly full: they would
//! preempt running requests to make room.

use edge_router_policy::{Candidates, Manifest, Phase, Policy, PolicyError, Request, Target};

/// Share of the KV cache in use from which on an instance is left alone.
const FULL: f32 = 0.9;

struct MyPolicy;

impl Policy for MyPolicy {
    fn configure(_config: &str) -> Result<Self, PolicyError> {
        Ok(Self)
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!()
    }

    fn schedule(
        &mut self,
        phase: Phase,
        _request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        if phase != Phase::Decode {
            return Ok(None); // left to the next policy in the chain
        }
        let roomy = candidates.iter().filter(|candidate| candidate.kv_usage < FULL);
        let least = roomy.min_by_key(|candidate| candidate.in_flight);
        Ok(least.map(|least| Target::new(least.id, "room in its KV cache")))
    }
}

edge_router_policy::export!(MyPolicy);

#[cfg(test)]
mod tests {
    use super::*;
    use edge_router_policy::testing;

    #[test]
    fn a_full_instance_is_left_alone_even_if_it_is_idle() {
        let mut fleet = testing::fleet().decode("d1:8000").decode("d2:8000");
        fleet.load("d1:8000").kv_usage = 0.95;
        fleet.load("d2:8000").in_flight = 3;

        let mut policy = testing::load::<MyPolicy>("{}", fleet);
        let request = testing::request("/v1/chat/completions");
        assert_eq!(policy.pick(Phase::Decode, &request).as_deref(), Some("d2:8000"));
        assert_eq!(policy.pick(Phase::Prefill, &request), None);
    }
}
