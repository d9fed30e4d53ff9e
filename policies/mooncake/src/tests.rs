use edge_router_policy::testing::{self, Fleet, Run, TestRequest};
use edge_router_policy::{Edit, Phase};

use super::*;

const CONCURRENT: &str = r#"{"concurrent": true}"#;
const KEPT: &str = r#"{"choices": [{"finish_reason": "length"}], "usage": {}, "kv_transfer_params": null}"#;

fn fleet() -> Fleet {
    testing::fleet()
        .prefill("10.0.0.1:8000")
        .label("bootstrap_address", "10.0.0.1:8998")
        .label("engine_id", "e0")
        .decode("10.0.0.2:8000")
}

fn pair() -> Pair {
    let at = |instance| Some(Placement { instance, dp_rank: None });
    Pair { prefill: at(1), decode: at(2) }
}

fn request() -> TestRequest {
    testing::request("/v1/completions").json(r#"{"prompt": "p"}"#)
}

fn prefill_leg(policy: &mut Run<Mooncake>, pair: Pair) -> Leg {
    policy.policy().rewrite_prefill(&request().as_request(), pair).unwrap().unwrap()
}

/// The decode leg after this answer of prefill, or before any.
fn merged(policy: &mut Run<Mooncake>, pair: Pair, answer: Option<&str>) -> Result<Leg, String> {
    let request = answer.into_iter().fold(request(), TestRequest::prefill_answer);
    let leg = policy.policy().merge_kv_params(&request.as_request(), pair, None);
    leg.map(Option::unwrap).map_err(|error| error.to_string())
}

fn params(leg: &Leg) -> Option<&str> {
    leg.edits.iter().find_map(|edit| match edit {
        Edit::Set { name, value } if name == "kv_transfer_params" => Some(value.as_ref()),
        _ => None,
    })
}

#[test]
fn one_after_the_other_decode_fetches_what_ended_by_its_length() {
    let mut policy = testing::load::<Mooncake>("{}", fleet());
    assert_eq!(policy.policy().manifest().handoff, Some(Handoff::Serial));
    let serial = Pair { decode: None, ..pair() };
    let prefill = prefill_leg(&mut policy, serial);
    assert!(params(&prefill).unwrap().contains(r#""do_remote_decode":true"#));
    assert_eq!(prefill.headers, [("x-data-parallel-rank".to_owned(), "0".to_owned())]);
    let decode = merged(&mut policy, pair(), Some(KEPT)).unwrap();
    assert!(params(&decode).unwrap().contains(r#""remote_bootstrap_addr":"http://10.0.0.1:8998""#));
}

#[test]
fn decode_never_waits_for_a_kv_cache_that_prefill_did_not_keep() {
    for config in ["{}", CONCURRENT] {
        let mut policy = testing::load::<Mooncake>(config, fleet());
        for answer in [r#"{"usage": {}}"#, &KEPT.replace("length", "stop"), &KEPT.replace("length", "abort")]
        {
            assert_eq!(merged(&mut policy, pair(), Some(answer)).unwrap(), Leg::new(), "{config}: {answer}");
        }
    }
    let mut policy = testing::load::<Mooncake>("{}", fleet());
    assert_eq!(merged(&mut policy, pair(), None).unwrap(), Leg::new(), "serial, and nothing is known");
}

#[test]
fn together_if_wanted_decode_is_told_before_prefill_has_answered() {
    let mut policy = testing::load::<Mooncake>(CONCURRENT, fleet());
    assert_eq!(policy.policy().manifest().handoff, Some(Handoff::Concurrent));
    let ahead = merged(&mut policy, pair(), None).unwrap();
    assert!(params(&ahead).is_some());
    assert_eq!(ahead, merged(&mut policy, pair(), Some(KEPT)).unwrap());
}

#[test]
fn what_is_wrong_with_the_fleet_is_told_when_the_legs_are_merged() {
    let told = |fleet: Fleet| {
        let mut policy = testing::load::<Mooncake>("{}", fleet);
        assert!(params(&prefill_leg(&mut policy, pair())).is_none(), "prefill must not keep a KV cache");
        merged(&mut policy, pair(), Some(KEPT)).unwrap_err()
    };
    let unlabelled = told(testing::fleet().prefill("p:1").decode("d:1"));
    assert!(unlabelled.starts_with("instance p:1 has no label `bootstrap_address`: "), "{unlabelled}");
    assert_eq!(told(testing::fleet()), "instance 1 has left the fleet");
}

#[test]
fn roles_are_never_crossed() {
    let crossed = Pair { prefill: pair().decode, decode: pair().prefill };
    for config in ["{}", CONCURRENT] {
        let mut policy = testing::load::<Mooncake>(config, fleet());
        assert!(params(&prefill_leg(&mut policy, crossed)).is_none());
        let refused = merged(&mut policy, crossed, Some(KEPT)).unwrap_err();
        assert_eq!(refused, "instance 10.0.0.2:8000 does not serve prefill");
        let to_itself = Pair { decode: pair().prefill, ..pair() };
        let refused = merged(&mut policy, to_itself, Some(KEPT)).unwrap_err();
        assert_eq!(refused, "instance 10.0.0.1:8000 does not serve decode");
    }
}

#[test]
fn it_leaves_scheduling_to_others() {
    let mut policy = testing::load::<Mooncake>("{}", fleet());
    assert_eq!(policy.pick(Phase::Prefill, &request()), None);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let refusal = |config| Mooncake::configure(config).err().unwrap().to_string();
    assert!(refusal(r#"{"parallel": true}"#).contains("expected `concurrent`"));
    assert!(refusal(r#"{"concurrent": "yes"}"#).starts_with("`concurrent`: invalid"));
}
