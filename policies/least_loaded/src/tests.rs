use edge_router_policy::testing::{self, Fleet, Run, TestRequest};

use super::*;

fn load(config: &str, fleet: Fleet) -> Run<LeastLoaded> {
    let mut run = testing::load::<LeastLoaded>(config, fleet);
    run.policy().random = Random::seeded(1);
    run
}

fn fleet() -> Fleet {
    testing::fleet().prefill("p1").prefill("p2").prefill("p3").decode("d1").decode("d2")
}

fn request() -> TestRequest {
    testing::request("/v1/chat/completions").prompt_tokens(100)
}

/// How often each of these is chosen in so many tries with unchanged load.
fn counts(policy: &mut Run<LeastLoaded>, phase: Phase, tries: usize, of: &[&str]) -> Vec<usize> {
    let picks: Vec<_> = (0..tries).map(|_| policy.pick(phase, &request()).unwrap()).collect();
    of.iter().map(|address| picks.iter().filter(|pick| pick == address).count()).collect()
}

#[test]
fn prefill_goes_where_the_fewest_tokens_are_queued() {
    let mut policy = load("{}", fleet());
    for (address, queued_tokens, in_flight) in [("p1", 900, 1), ("p2", 300, 3), ("p3", 500, 0)] {
        *policy.fleet().load(address) =
            Candidate { queued_tokens, in_flight, ..*policy.fleet().load(address) };
    }
    assert_eq!(counts(&mut policy, Phase::Prefill, 20, &["p2"]), [20]);
}

#[test]
fn decode_goes_where_the_fewest_requests_are() {
    let mut policy = load("{}", fleet());
    policy.fleet().load("d1").in_flight = 4;
    policy.fleet().load("d2").in_flight = 1;
    assert_eq!(counts(&mut policy, Phase::Decode, 20, &["d2"]), [20]);
    // Another router keeps it busy.
    policy.fleet().load("d2").running = 6;
    assert_eq!(counts(&mut policy, Phase::Decode, 20, &["d1"]), [20]);
}

#[test]
fn equals_share_evenly() {
    let shares = counts(&mut load("{}", fleet()), Phase::Prefill, 3_000, &["p1", "p2", "p3"]);
    assert!(shares.iter().all(|share| (900..1_100).contains(share)), "{shares:?}");
}

#[test]
fn an_instance_that_fails_fast_does_not_draw_the_traffic() {
    let mut policy = load("{}", fleet());
    policy.fleet().load("p1").failures = 2;
    policy.fleet().load("p2").queued_tokens = 150;
    policy.fleet().load("p3").queued_tokens = 250;
    assert_eq!(counts(&mut policy, Phase::Prefill, 20, &["p2"]), [20]);
}

#[test]
fn of_two_choices_the_worst_of_three_is_never_taken() {
    let mut policy = load(r#"{"choices": 2}"#, fleet());
    policy.fleet().load("p2").queued_tokens = 1;
    policy.fleet().load("p3").queued_tokens = 2;
    // p1 is in two of the three possible pairs, and p2 is the better of the third.
    let shares = counts(&mut policy, Phase::Prefill, 3_000, &["p1", "p2", "p3"]);
    assert!((1_850..2_150).contains(&shares[0]), "{shares:?}");
    assert_eq!(shares[2], 0);
}

#[test]
fn more_choices_than_candidates_are_all_of_them() {
    let mut policy = load(r#"{"choices": 9}"#, fleet());
    policy.fleet().load("d1").in_flight = 1;
    assert_eq!(counts(&mut policy, Phase::Decode, 20, &["d2"]), [20]);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let refusal = |config| LeastLoaded::configure(config).err().unwrap().to_string();
    assert!(refusal(r#"{"choices": 1}"#).starts_with("`choices` must be at least 2"));
    assert!(refusal(r#"{"choices": "two"}"#).starts_with("`choices`: invalid type"));
    assert!(refusal(r#"{"choice": 2}"#).starts_with("unknown field `choice`, expected `choices`"));
}
