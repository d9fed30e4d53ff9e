use super::*;
use crate::connectors::golden::{assert_leg, edited, golden};
use crate::testing::{self, Fleet};

fn unlabelled() -> Fleet {
    testing::fleet().prefill("10.0.0.1:8000").dp_size(2)
}

fn fleet() -> Fleet {
    unlabelled()
        .label("bootstrap_address", "10.0.0.1:8998")
        .label("engine_id", "b3fb0c8b")
        .label("engine_id_dp1", "917b0c8b")
        .decode("10.0.0.2:8000")
}

fn producer() -> Producer {
    Producer::of(&fleet().instances()[0]).unwrap()
}

fn consumer() -> Consumer {
    Consumer::of(&fleet().instances()[1]).unwrap()
}

fn at(dp_rank: Option<u32>) -> Placement {
    Placement { instance: 7, dp_rank }
}

fn unfit(fleet: &Fleet) -> String {
    Producer::of(&fleet.instances()[0]).unwrap_err().to_string()
}

#[test]
fn the_golden_legs() {
    let producer = producer();
    let transfer = Transfer::new("request-1", at(Some(1)), &producer).unwrap();
    let client = golden!("mooncake/client");
    let request = testing::request("/v1/chat/completions").json(client);
    let leg = transfer.prefill_leg(&request.as_request());
    assert_leg(client, &leg, golden!("mooncake/prefill_leg"));
    assert_eq!(leg.headers, [("x-data-parallel-rank".to_owned(), "1".to_owned())]);
    let leg = transfer.decode_leg(&consumer());
    assert_leg(client, &leg, golden!("mooncake/decode_leg"));
    assert!(leg.headers.is_empty());
    let answered = request.prefill_answer(golden!("mooncake/prefill_answer"));
    assert!(crate::connectors::prefill_answer::ended_by_length(&answered.as_request()));
}

#[test]
fn both_legs_speak_of_one_rank_and_one_transfer() {
    let producer = producer();
    let request = testing::request("/v1/completions").json("{}");
    let mut seen = std::collections::BTreeSet::new();
    for id in 0..32 {
        let transfer = || Transfer::new(&format!("request-{id}"), at(None), &producer).unwrap();
        let prefill = transfer().prefill_leg(&request.as_request());
        let asked = edited("{}", &prefill)["kv_transfer_params"].clone();
        let told = edited("{}", &transfer().decode_leg(&consumer()))["kv_transfer_params"].clone();
        assert_eq!(asked["transfer_id"], told["transfer_id"]);
        let engine_id = if prefill.headers[0].1 == "0" { "b3fb0c8b" } else { "917b0c8b" };
        assert_eq!(told["remote_engine_id"], engine_id);
        seen.insert(told.to_string());
    }
    assert_eq!(seen.len(), 32, "each attempt has a transfer of its own");
    let engines = seen.iter().filter(|params| params.contains("b3fb0c8b")).count();
    assert!((1..32).contains(&engines), "both ranks are used");
}

#[test]
fn every_prefill_instance_has_a_transfer_of_its_own() {
    let producer = producer();
    let id = |instance| Transfer::new("r", Placement { instance, dp_rank: None }, &producer).unwrap().id();
    assert_ne!(id(1), id(2));
}

#[test]
fn a_rank_that_is_not_there_is_refused() {
    let refused = Transfer::new("r", at(Some(2)), &producer()).unwrap_err();
    assert_eq!(refused.to_string(), "instance 10.0.0.1:8000 has no data-parallel rank 2");
}

#[test]
fn a_missing_label_is_named_with_its_remedy() {
    let missing = unfit(&unlabelled());
    assert!(missing.starts_with("instance 10.0.0.1:8000 has no label `bootstrap_address`: "), "{missing}");
    assert!(missing.contains("--mooncake-bootstrap"), "{missing}");
    let one = unlabelled().label("bootstrap_address", "http://h:8998/").label("engine_id", "a");
    assert!(unfit(&one).contains("has no label `engine_id_dp1`"));
    let malformed = unfit(&unlabelled().label("bootstrap_address", "h"));
    assert!(malformed.ends_with("label bootstrap_address=`h` must be host:port"), "{malformed}");
}

#[test]
fn the_scheme_is_said_once() {
    let fleet = testing::fleet().prefill("p:1").label("engine_id", "a");
    for text in ["h:8998", "http://h:8998", "http://h:8998/"] {
        let producer = Producer::of(&fleet.clone().label("bootstrap_address", text).instances()[0]).unwrap();
        let transfer = Transfer::new("r", at(None), &producer).unwrap();
        let told = edited("{}", &transfer.decode_leg(&consumer()))["kv_transfer_params"].clone();
        assert_eq!(told["remote_bootstrap_addr"], "http://h:8998");
    }
}

#[test]
fn no_instance_gets_the_leg_of_the_other_role() {
    let roles = [Role::Encode, Role::Prefill, Role::Decode, Role::Both, Role::Render];
    for role in roles {
        let fleet =
            testing::fleet().instance(role, "e:1").label("bootstrap_address", "h:1").label("engine_id", "a");
        let instance = &fleet.instances()[0];
        assert_eq!(Producer::of(instance).is_ok(), matches!(role, Role::Prefill | Role::Both), "{role:?}");
        assert_eq!(Consumer::of(instance).is_ok(), matches!(role, Role::Decode | Role::Both), "{role:?}");
    }
}
