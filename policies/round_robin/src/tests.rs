use std::collections::{BTreeMap, BTreeSet};

use edge_router_policy::testing::{self, Fleet, Run};

use super::*;

fn load(fleet: Fleet) -> Run<RoundRobin> {
    testing::load("{}", fleet)
}

fn picks(policy: &mut Run<RoundRobin>, phase: Phase, count: usize) -> Vec<String> {
    let request = testing::request("/v1/completions");
    (0..count).map(|_| policy.pick(phase, &request).unwrap()).collect()
}

fn counts(picks: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for pick in picks {
        *counts.entry(pick.as_str()).or_default() += 1;
    }
    counts
}

fn two_by_two() -> Fleet {
    testing::fleet().prefill("p1").prefill("p2").decode("d1").decode("d2")
}

#[test]
fn prefill_instances_take_turns_in_order() {
    assert_eq!(picks(&mut load(two_by_two()), Phase::Prefill, 5), ["p1", "p2", "p1", "p2", "p1"]);
}

#[test]
fn the_phases_do_not_share_turns() {
    let mut policy = load(two_by_two());
    let request = testing::request("/v1/completions");
    let mut prefill = Vec::new();
    for _ in 0..4 {
        prefill.push(policy.pick(Phase::Prefill, &request).unwrap());
        policy.pick(Phase::Decode, &request);
    }
    assert_eq!(prefill, ["p1", "p2", "p1", "p2"]);
}

#[test]
fn every_prefill_instance_meets_every_decode_instance() {
    let fleet = two_by_two().prefill("p3").decode("d3");
    let mut policy = load(fleet);
    let request = testing::request("/v1/completions");
    let pairs: BTreeSet<_> = (0..9)
        .map(|_| (policy.pick(Phase::Prefill, &request), policy.pick(Phase::Decode, &request)))
        .collect();
    assert_eq!(pairs.len(), 9);
}

#[test]
fn a_new_instance_gets_its_share_and_no_burst() {
    let mut policy = load(two_by_two());
    picks(&mut policy, Phase::Prefill, 101);
    policy.change_fleet(|fleet| fleet.prefill("p3"));
    let after = picks(&mut policy, Phase::Prefill, 2);
    assert_eq!(counts(&after).into_values().max(), Some(1));
    assert_eq!(counts(&picks(&mut policy, Phase::Prefill, 30)), [("p1", 10), ("p2", 10), ("p3", 10)].into());
}

#[test]
fn who_leaves_is_skipped_and_the_rest_stays_even() {
    let mut policy = load(two_by_two().prefill("p3"));
    picks(&mut policy, Phase::Prefill, 4);
    policy.change_fleet(|mut fleet| {
        fleet.remove("p1");
        fleet
    });
    assert_eq!(counts(&picks(&mut policy, Phase::Prefill, 20)), [("p2", 10), ("p3", 10)].into());
}

#[test]
fn candidates_of_another_model_keep_their_own_turns() {
    let mut turns = Turns::default();
    let mut of_b = Vec::new();
    for _ in 0..4 {
        turns.next(&[1, 2]);
        turns.next(&[1, 2]);
        of_b.push(turns.next(&[3, 4]).unwrap());
    }
    assert_eq!(of_b, [3, 4, 3, 4]);
}

#[test]
fn without_candidates_it_abstains() {
    assert_eq!(Turns::default().next(&[]), None);
}

#[test]
fn it_takes_no_parameters() {
    let error = RoundRobin::configure(r#"{"weight": 1}"#).err().unwrap().to_string();
    assert!(error.starts_with("unknown field `weight`, there are no fields"), "{error}");
}
