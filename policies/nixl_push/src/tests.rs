use edge_router_policy::testing::{self, Fleet};
use edge_router_policy::{Edit, Phase};

use super::*;

const CONCURRENT: &str = r#"{"concurrent": true}"#;
const PUSH: &str = r#"{"do_remote_prefill":true,"remote_block_ids":[[7]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"transfer_mode":"push"}"#;

fn labelled() -> Fleet {
    let fleet = testing::fleet().prefill("p:1").dp_size(2).label("side_channel", "p:5600");
    fleet.label("engine_id", "e_dp0").label("engine_id_dp1", "e_dp1")
}

fn pair() -> Pair {
    Pair { prefill: Some(Placement { instance: 1, dp_rank: None }), decode: None }
}

/// Both legs before anything is sent, and the lines that they cost.
fn ahead(config: &str, fleet: Fleet, times: usize) -> (Leg, Leg, Vec<(log::Level, String)>) {
    let mut policy = testing::load::<NixlPush>(config, fleet);
    let request = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
    let mut legs = None;
    let lines = testing::captured_log(|| {
        for _ in 0..times {
            let prefill = policy.policy().rewrite_prefill(&request.as_request(), pair());
            let decode = policy.policy().merge_kv_params(&request.as_request(), pair(), None);
            legs = Some((prefill.unwrap().unwrap(), decode.unwrap().unwrap()));
        }
    });
    let (prefill, decode) = legs.unwrap();
    (prefill, decode, lines)
}

#[test]
fn together_if_wanted_decode_is_told_what_the_labels_say() {
    let (prefill, decode, lines) = ahead(CONCURRENT, labelled(), 2);
    let [Edit::Set { name, value: told }] = &decode.edits[..] else { panic!("{decode:?}") };
    let (header, rank) = &prefill.headers[0];
    assert_eq!((name.as_ref(), header.as_str()), ("kv_transfer_params", "x-data-parallel-rank"));
    assert!(told.contains(&format!(r#""remote_engine_id":"e_dp{rank}""#)), "{told}");
    assert!(told.contains(r#""transfer_mode":"push""#) && lines.is_empty(), "{lines:?}");
}

#[test]
fn without_labels_the_legs_run_one_after_the_other_and_that_is_said_once() {
    let (prefill, decode, lines) = ahead(CONCURRENT, testing::fleet().prefill("p:1"), 3);
    assert_eq!((decode, prefill.headers.len()), (Leg::new(), 0));
    let [(log::Level::Warn, line)] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("instance p:1 has no label `engine_id`"), "{line}");
}

#[test]
fn one_after_the_other_is_the_default() {
    let (prefill, decode, lines) = ahead("{}", labelled(), 1);
    assert_eq!((decode, prefill.headers.len(), lines.len()), (Leg::new(), 0, 0));
    let handoff = |config| NixlPush::configure(config).unwrap().manifest().handoff;
    assert_eq!((handoff("{}"), handoff(CONCURRENT)), (None, Some(Handoff::Concurrent)));
}

#[test]
fn what_prefill_answered_counts_where_the_legs_ran_one_after_the_other_all_the_same() {
    let mut policy = testing::load::<NixlPush>(CONCURRENT, labelled());
    let request = testing::request("/v1/completions").json("{}").prefill_answer(r#"{"usage": {}}"#);
    let mut merged = |kv_params| policy.policy().merge_kv_params(&request.as_request(), pair(), kv_params);
    assert_eq!(merged(None).unwrap(), Some(Leg::new()));
    assert_eq!(merged(Some(PUSH)).unwrap(), Some(Leg::new().set("kv_transfer_params", PUSH)));
}

fn merged(kv_params: Option<&str>) -> Result<Option<Leg>, PolicyError> {
    let mut policy = testing::load::<NixlPush>("{}", testing::fleet());
    let request = testing::request("/v1/completions").json(r#"{"prompt": "p"}"#);
    policy.policy().merge_kv_params(&request.as_request(), Pair::default(), kv_params)
}

#[test]
fn what_prefill_returned_is_handed_on_if_it_is_push() {
    assert_eq!(merged(Some(PUSH)).unwrap(), Some(Leg::new().set("kv_transfer_params", PUSH)));
    let refused = merged(Some(&PUSH.replace("\"push\"", "\"pull\""))).unwrap_err().to_string();
    assert!(refused.contains("the policy `nixl`"), "{refused}");
    assert_eq!(merged(None).unwrap(), Some(Leg::new()));
}

#[test]
fn it_leaves_scheduling_to_others_and_takes_no_parameter_but_one() {
    let mut policy = testing::load::<NixlPush>("{}", testing::fleet().decode("d:1"));
    assert_eq!(policy.pick(Phase::Decode, &testing::request("/v1/completions")), None);
    assert!(NixlPush::configure(r#"{"x": 1}"#).is_err());
}
