//! Engines that find the KV cache by the prompt: prefill computes it, and
//! decode is told nothing.

use edge_router_policy::connectors::plain;
use edge_router_policy::{Leg, Manifest, Pair, Policy, PolicyError, Request, parse_config};

/// Shapes the legs; leaves it to others where they go.
pub struct Plain;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {}

impl Policy for Plain {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        let Config {} = parse_config(config)?;
        Ok(Self)
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!()
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, _: Pair) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(plain::prefill_leg(request)))
    }

    fn merge_kv_params(
        &mut self,
        _: &Request<'_>,
        _: Pair,
        _: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(plain::decode_leg()))
    }
}

edge_router_policy::export!(Plain);

#[cfg(test)]
mod tests {
    use edge_router_policy::{Edit, Phase, testing};

    use super::*;

    #[test]
    fn decode_is_told_nothing_whatever_prefill_returned() {
        let mut policy = testing::load::<Plain>("{}", testing::fleet());
        let request = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
        for returned in [None, Some(r#"{"num_lmcache_extra_cached_tokens": 3}"#)] {
            let leg = policy.policy().merge_kv_params(&request.as_request(), Pair::default(), returned);
            assert_eq!(leg.unwrap(), Some(Leg::new()));
        }
    }

    #[test]
    fn prefill_is_cut_to_one_token_without_kv_transfer_params() {
        let mut policy = testing::load::<Plain>("{}", testing::fleet());
        let request = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
        let leg = policy.policy().rewrite_prefill(&request.as_request(), Pair::default()).unwrap().unwrap();
        assert!(leg.edits.contains(&Edit::Set { name: "max_tokens".into(), value: "1".into() }));
        let names_params =
            |edit: &Edit| matches!(edit, Edit::Set { name, .. } if name == "kv_transfer_params");
        assert!(!leg.edits.iter().any(names_params));
    }

    #[test]
    fn it_leaves_scheduling_to_others_and_takes_no_parameters() {
        let mut policy = testing::load::<Plain>("{}", testing::fleet().prefill("p:1"));
        assert_eq!(policy.pick(Phase::Prefill, &testing::request("/v1/completions")), None);
        assert!(Plain::configure(r#"{"x": 1}"#).is_err());
    }
}
