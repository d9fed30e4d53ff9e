use edge_router_policy::testing::{self, Fleet, TestRequest};
use edge_router_policy::{Edit, Phase, Placement};

use super::*;

const RETURNED: &str = r#"{"do_remote_prefill": true, "remote_block_ids": [[7]], "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "localhost", "remote_port" : 5600}"#;
const CHAT: &str = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;

fn fleet() -> Fleet {
    testing::fleet().prefill("10.0.0.1:8000").decode("10.0.0.2:8000")
}

fn chat() -> TestRequest {
    testing::request("/v1/chat/completions").json(CHAT).prefill_answer(r#"{"prompt_token_ids": [1,2]}"#)
}

fn value(leg: Option<Leg>, field: &str) -> Option<String> {
    leg?.edits.into_iter().find_map(|edit| match edit {
        Edit::Set { name, value } if name == field => Some(value.into_owned()),
        _ => None,
    })
}

/// The params that decode gets for what prefill, the instance 1, returned.
fn merged(config: &str) -> String {
    let mut policy = testing::load::<Nixl>(config, fleet());
    let pair = Pair { prefill: Some(Placement { instance: 1, dp_rank: None }), decode: None };
    let leg = policy.policy().merge_kv_params(&chat().as_request(), pair, Some(RETURNED)).unwrap();
    value(leg, "kv_transfer_params").unwrap()
}

#[test]
fn a_loopback_host_becomes_that_of_the_prefill_instance_and_the_rest_stays() {
    assert_eq!(merged("{}"), RETURNED.replace("localhost", "10.0.0.1"));
    assert_eq!(merged(r#"{"rewrite_loopback_host": false}"#), RETURNED);
}

#[test]
fn token_ids_are_asked_for_and_handed_on_if_wanted() {
    let wanted = r#"{"reuse_token_ids": true, "rewrite_loopback_host": false}"#;
    assert_eq!(merged(wanted), RETURNED.replace('}', r#","prompt_token_ids":[1,2]}"#));
    let asked = |config: &str, request: &TestRequest| {
        let leg = Nixl::configure(config).unwrap().rewrite_prefill(&request.as_request(), Pair::default());
        value(leg.unwrap(), "return_token_ids")
    };
    assert_eq!(asked(wanted, &chat()).as_deref(), Some("true"));
    assert_eq!(asked("{}", &chat()), None);
    let completion = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
    assert_eq!(asked(wanted, &completion), None);
}

#[test]
fn without_a_kv_cache_decode_gets_the_plain_body() {
    let mut policy = testing::load::<Nixl>(r#"{"reuse_token_ids": true}"#, fleet());
    for returned in [None, Some("{}")] {
        let leg = policy.policy().merge_kv_params(&chat().as_request(), Pair::default(), returned);
        assert_eq!(leg.unwrap(), Some(Leg::new()));
    }
}

#[test]
fn it_leaves_scheduling_to_others() {
    let mut policy = testing::load::<Nixl>("{}", fleet());
    assert_eq!(policy.pick(Phase::Prefill, &chat()), None);
    assert_eq!(policy.policy().manifest().handoff, None);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let refusal = |config| Nixl::configure(config).err().unwrap().to_string();
    assert!(refusal(r#"{"rewrite_host": true}"#).contains("expected `rewrite_loopback_host` or"));
    assert!(refusal(r#"{"reuse_token_ids": 1}"#).starts_with("`reuse_token_ids`: invalid type"));
}
