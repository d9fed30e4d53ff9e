//! NIXL's push connector, run serially: decode gets the coordinates that
//! prefill returned.

use edge_router_policy::connectors::nixl_push;
use edge_router_policy::{Leg, Manifest, Pair, Policy, PolicyError, Request, parse_config};

/// Shapes the legs; leaves it to others where they go.
pub struct NixlPush;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {}

impl Policy for NixlPush {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        let Config {} = parse_config(config)?;
        Ok(Self)
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!()
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, _: Pair) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(nixl_push::prefill_leg(request)))
    }

    fn merge_kv_params(
        &mut self,
        _: &Request<'_>,
        _: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        nixl_push::decode_leg(kv_params).map(Some).map_err(|error| PolicyError::new(error.to_string()))
    }
}

edge_router_policy::export!(NixlPush);

#[cfg(test)]
mod tests {
    use edge_router_policy::{Phase, testing};

    use super::*;

    fn merged(kv_params: Option<&str>) -> Result<Option<Leg>, PolicyError> {
        let mut policy = testing::load::<NixlPush>("{}", testing::fleet());
        let request = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
        policy.policy().merge_kv_params(&request.as_request(), Pair::default(), kv_params)
    }

    #[test]
    fn what_prefill_returned_is_handed_on_if_it_is_push() {
        let push = r#"{"do_remote_prefill":true,"remote_block_ids":[[7]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"transfer_mode":"push"}"#;
        assert_eq!(merged(Some(push)).unwrap(), Some(Leg::new().set("kv_transfer_params", push.to_owned())));
        let refused = merged(Some(&push.replace("\"push\"", "\"pull\""))).unwrap_err().to_string();
        assert!(refused.contains("the policy `nixl`"), "{refused}");
        assert_eq!(merged(None).unwrap(), Some(Leg::new()));
    }

    #[test]
    fn it_leaves_scheduling_to_others_and_takes_no_parameters() {
        let mut policy = testing::load::<NixlPush>("{}", testing::fleet().decode("d:1"));
        assert_eq!(policy.pick(Phase::Decode, &testing::request("/v1/completions")), None);
        assert!(NixlPush::configure(r#"{"x": 1}"#).is_err());
    }
}
