use std::collections::BTreeMap;

use edge_router_policy::testing::{self, Fleet, Run};
use proptest::prelude::*;

use super::*;

const NO_LIMIT: &str = r#"{"max_load_factor": 0}"#;

fn load_with(config: &str, fleet: Fleet) -> Run<SessionAffinity> {
    testing::load(config, fleet)
}

fn fleet(instances: usize) -> Fleet {
    (0..instances).fold(testing::fleet(), |fleet, n| fleet.decode(&format!("10.0.0.{n}:8000")))
}

fn pick(policy: &mut Run<SessionAffinity>, session: &str) -> String {
    policy.pick(Phase::Decode, &testing::request("/v1/chat/completions").session_key(session)).unwrap()
}

/// Where each of so many sessions goes.
fn homes(policy: &mut Run<SessionAffinity>, sessions: usize) -> Vec<String> {
    (0..sessions).map(|n| pick(policy, &format!("session {n}"))).collect()
}

#[test]
fn without_a_session_key_it_abstains() {
    let request = testing::request("/v1/chat/completions");
    assert_eq!(load_with("{}", fleet(3)).pick(Phase::Decode, &request), None);
}

#[test]
fn sessions_spread_over_all_instances() {
    let homes = homes(&mut load_with("{}", fleet(5)), 5_000);
    let mut counts = BTreeMap::new();
    homes.iter().for_each(|home| *counts.entry(home).or_insert(0) += 1);
    assert_eq!(counts.len(), 5);
    assert!(counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
}

#[test]
fn replicas_agree_whatever_their_ids_and_order_are() {
    let reversed = (0..5)
        .rev()
        .fold(testing::fleet().decode("gone:1"), |fleet, n| fleet.decode(&format!("10.0.0.{n}:8000")));
    let mut other = load_with("{}", reversed);
    other.change_fleet(|mut fleet| {
        fleet.remove("gone:1");
        fleet
    });
    assert_eq!(homes(&mut other, 200), homes(&mut load_with("{}", fleet(5)), 200));
}

#[test]
fn a_busy_home_lends_the_request_out_and_gets_the_session_back() {
    let mut policy = load_with("{}", fleet(3));
    let home = pick(&mut policy, "s");
    policy.fleet().load(&home).in_flight = 4;
    let guest =
        policy.schedule(Phase::Decode, &testing::request("/v1/completions").session_key("s")).unwrap();
    assert_eq!(guest.reason, "the session's own is too busy");
    assert_ne!(policy.fleet().address(guest.instance), Some(home.as_str()));
    policy.fleet().load(&home).in_flight = 0;
    assert_eq!(pick(&mut policy, "s"), home);
}

#[test]
fn without_a_limit_a_busy_home_keeps_its_sessions() {
    let mut policy = load_with(NO_LIMIT, fleet(3));
    let home = pick(&mut policy, "s");
    policy.fleet().load(&home).in_flight = 1_000;
    assert_eq!(pick(&mut policy, "s"), home);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let refusal = |config| SessionAffinity::configure(config).err().unwrap().to_string();
    assert!(refusal(r#"{"max_load_factor": 0.5}"#).starts_with("`max_load_factor` must be at least 1"));
    assert!(refusal(r#"{"max_load_factor": -1}"#).starts_with("`max_load_factor` must be at least 1"));
    assert!(refusal(r#"{"load_factor": 1}"#).contains("expected `max_load_factor`"));
}

proptest! {
    #[test]
    fn a_removed_instance_moves_only_its_own_sessions(instances in 2..12_usize, removed in 0..12_usize) {
        let gone = format!("10.0.0.{}:8000", removed % instances);
        let mut policy = load_with("{}", fleet(instances));
        let before = homes(&mut policy, 100);
        policy.change_fleet(|mut fleet| {
            fleet.remove(&gone);
            fleet
        });
        for (before, after) in before.iter().zip(homes(&mut policy, 100)) {
            prop_assert!(*before == gone || *before == after, "{before} -> {after} without {gone}");
        }
    }

    /// The choice never passes the limit, and there always is one.
    #[test]
    fn no_instance_is_given_more_than_its_bounded_share(
        loads in prop::collection::vec(0..50_u32, 1..10),
        factor in 1.0..2.0_f64,
    ) {
        let mut policy = load_with(&format!(r#"{{"max_load_factor": {factor}}}"#), fleet(loads.len()));
        for (n, in_flight) in loads.iter().enumerate() {
            policy.fleet().load(&format!("10.0.0.{n}:8000")).in_flight = *in_flight;
        }
        let mean = f64::from(loads.iter().sum::<u32>() + 1) / loads.len() as f64;
        for n in 0..20 {
            let chosen = pick(&mut policy, &format!("session {n}"));
            let after = policy.fleet().load(&chosen).in_flight + 1;
            prop_assert!(f64::from(after) <= (mean * factor).ceil());
        }
    }
}
