use edge_router_policy::testing::{self, Fleet, Run};
use edge_router_policy::{Edit, Phase};

use super::*;

const DECODE: &str = "host:10.0.0.2,handshake:6301,notify:61005";

fn fleet(prefill_mode: &str) -> Fleet {
    fleet_of(prefill_mode, "READ")
}

fn fleet_of(prefill_mode: &str, decode_mode: &str) -> Fleet {
    testing::fleet()
        .prefill("10.0.0.1:8000")
        .label("handshake_port", "6301")
        .label("notify_port", "61005")
        .label("transfer_mode", prefill_mode)
        .decode("10.0.0.2:8000")
        .label("zmq_address", DECODE)
        .label("transfer_mode", decode_mode)
}

fn pair() -> Pair {
    let at = |instance| Some(Placement { instance, dp_rank: None });
    Pair { prefill: at(1), decode: at(2) }
}

fn prefill_leg(policy: &mut Run<Moriio>, pair: Pair) -> Leg {
    let request = testing::request("/v1/completions").json(r#"{"prompt": "p", "min_tokens": 4}"#);
    policy.policy().rewrite_prefill(&request.as_request(), pair).unwrap().unwrap()
}

fn merged(policy: &mut Run<Moriio>, pair: Pair, kv_params: Option<&str>) -> Result<Option<Leg>, String> {
    let request = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
    let leg = policy.policy().merge_kv_params(&request.as_request(), pair, kv_params);
    leg.map_err(|error| error.to_string())
}

fn value<'a>(leg: &'a Leg, field: &str) -> Option<&'a str> {
    leg.edits.iter().rev().find_map(|edit| match edit {
        Edit::Set { name, value } if name == field => Some(value.as_ref()),
        _ => None,
    })
}

/// What prefill returns to this leg.
fn answer(prefill_leg: &Leg) -> String {
    let (_, id) = value(prefill_leg, "kv_transfer_params").unwrap().split_once("\"tx-").unwrap();
    let (id, _) = id.split_once('"').unwrap();
    format!(
        r#"{{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"10.0.0.1:6301","transfer_id":"tx-{id}"}}"#
    )
}

#[test]
fn prefill_is_told_who_comes_and_decode_where_to_go() {
    let mut policy = testing::load::<Moriio>("{}", fleet("READ"));
    assert_eq!(policy.policy().manifest().handoff, Some(Handoff::SerialPaired));
    let prefill = prefill_leg(&mut policy, pair());
    assert!(value(&prefill, "kv_transfer_params").unwrap().contains(r#""remote_host":"10.0.0.2""#));
    assert_eq!(value(&prefill, "min_tokens"), Some("1"));
    let decode = merged(&mut policy, pair(), Some(&answer(&prefill))).unwrap().unwrap();
    assert!(value(&decode, "kv_transfer_params").unwrap().contains(r#""remote_host":"10.0.0.1""#));
    assert!(prefill.headers.is_empty() && decode.headers.is_empty());
}

#[test]
fn both_legs_carry_the_same_embedded_request_id_if_wanted() {
    let mut policy = testing::load::<Moriio>(r#"{"address_by_request_id": true}"#, fleet("READ"));
    let prefill = prefill_leg(&mut policy, pair());
    let decode = merged(&mut policy, pair(), Some(&answer(&prefill))).unwrap().unwrap();
    assert_eq!(prefill.headers, decode.headers);
    let (name, value) = &prefill.headers[0];
    assert!(name == "x-request-id" && value.contains(&format!("___decode_addr_{DECODE}_")), "{value}");
}

#[test]
fn without_a_kv_cache_decode_gets_the_plain_body() {
    let mut policy = testing::load::<Moriio>(r#"{"address_by_request_id": true}"#, fleet("READ"));
    assert_eq!(merged(&mut policy, pair(), None).unwrap(), Some(Leg::new()));
}

const CONCURRENT: &str = r#"{"concurrent": true}"#;

#[test]
fn in_write_mode_decode_is_told_before_prefill_has_answered_if_wanted() {
    let mut policy = testing::load::<Moriio>(CONCURRENT, fleet_of("WRITE", "WRITE"));
    assert_eq!(policy.policy().manifest().handoff, Some(Handoff::Concurrent));
    let prefill = prefill_leg(&mut policy, pair());
    let ahead = merged(&mut policy, pair(), None).unwrap().unwrap();
    let params = value(&ahead, "kv_transfer_params").unwrap();
    for told in [r#""do_remote_prefill":true"#, r#""remote_block_ids":null"#, r#""remote_engine_id":null"#] {
        assert!(params.contains(told), "{params}");
    }
    // Run one after the other all the same, what prefill answered counts.
    let after = merged(&mut policy, pair(), Some(&answer(&prefill))).unwrap().unwrap();
    assert!(value(&after, "kv_transfer_params").unwrap().contains(r#""remote_block_ids":[[1]]"#));
}

#[test]
fn what_can_not_start_together_has_no_params_before_prefill_has_answered() {
    for (config, mode) in [(CONCURRENT, "READ"), ("{}", "WRITE")] {
        let mut policy = testing::load::<Moriio>(config, fleet_of(mode, mode));
        assert_eq!(merged(&mut policy, pair(), None).unwrap(), Some(Leg::new()), "{mode}");
    }
}

#[test]
fn decode_is_not_told_to_wait_for_a_prefill_that_answered_without_params() {
    let mut policy = testing::load::<Moriio>(CONCURRENT, fleet_of("WRITE", "WRITE"));
    let request =
        testing::request("/v1/completions").json(r#"{"prompt": "p"}"#).prefill_answer(r#"{"usage": {}}"#);
    let leg = policy.policy().merge_kv_params(&request.as_request(), pair(), None);
    assert_eq!(leg.unwrap(), Some(Leg::new()));
}

#[test]
fn what_is_wrong_with_the_fleet_is_told_when_the_legs_are_merged() {
    let told = |fleet: Fleet, pair| {
        let mut policy = testing::load::<Moriio>("{}", fleet);
        let prefill = prefill_leg(&mut policy, pair);
        assert!(value(&prefill, "kv_transfer_params").is_none(), "prefill must not keep a KV cache");
        merged(&mut policy, pair, None).unwrap_err()
    };
    let unlabelled = testing::fleet().prefill("10.0.0.1:8000").decode("10.0.0.2:8000");
    let missing = told(unlabelled, pair());
    assert!(missing.starts_with("instance 10.0.0.1:8000 has no label `handshake_port`: "), "{missing}");
    assert!(told(fleet("WRITE"), pair()).contains("they can't serve one request"));
    assert_eq!(told(testing::fleet(), pair()), "instance 1 has left the fleet");
    let serial = Pair { decode: None, ..pair() };
    assert!(told(fleet("READ"), serial).contains("asks for another handoff"));
}

#[test]
fn it_leaves_scheduling_to_others() {
    let mut policy = testing::load::<Moriio>("{}", fleet("READ"));
    assert_eq!(policy.pick(Phase::Prefill, &testing::request("/v1/completions")), None);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let refusal = |config| Moriio::configure(config).err().unwrap().to_string();
    assert!(
        refusal(r#"{"by_request_id": true}"#).contains("expected `address_by_request_id` or `concurrent`")
    );
    assert!(refusal(r#"{"address_by_request_id": "yes"}"#).starts_with("`address_by_request_id`: invalid"));
}
