use std::collections::VecDeque;

use edge_router_policy::testing::{self, Fleet, Run, TestRequest};
use proptest::prelude::*;

use super::*;

fn load(config: &str, fleet: Fleet) -> Run<CacheAware> {
    let mut run = testing::load::<CacheAware>(config, fleet);
    run.policy().random = Random::seeded(1);
    run
}

fn fleet() -> Fleet {
    testing::fleet().prefill("p1").prefill("p2").prefill("p3").decode("d1").decode("d2")
}

fn prompt(tokens: u32) -> TestRequest {
    testing::request("/v1/chat/completions").prompt_tokens(tokens)
}

fn pick(policy: &mut Run<CacheAware>, tokens: u32) -> String {
    policy.pick(Phase::Prefill, &prompt(tokens)).unwrap()
}

#[test]
fn the_longest_cached_prefix_wins() {
    let mut policy = load("{}", fleet());
    policy.fleet().load("p1").cached_tokens = 320;
    policy.fleet().load("p2").cached_tokens = 512;
    policy.fleet().load("p2").in_flight = 5;
    let target = policy.schedule(Phase::Prefill, &prompt(600)).unwrap();
    assert_eq!(target.reason, "cached 512 of 600");
    assert_eq!(policy.fleet().address(target.instance), Some("p2"));
}

#[test]
fn of_equal_prefixes_the_less_loaded_wins() {
    let mut policy = load("{}", fleet());
    for address in ["p1", "p2"] {
        policy.fleet().load(address).cached_tokens = 512;
    }
    policy.fleet().load("p1").queued_tokens = 10;
    assert_eq!(pick(&mut policy, 600), "p2");
}

#[test]
fn a_short_prefix_is_not_worth_it() {
    let mut policy = load("{}", fleet());
    policy.fleet().load("p1").cached_tokens = 180;
    policy.fleet().load("p1").queued_tokens = 2;
    policy.fleet().load("p2").queued_tokens = 1;
    assert_eq!(pick(&mut policy, 600), "p3");
    assert_eq!(pick(&mut policy, 599), "p1", "more than the threshold of 0.3");
}

#[test]
fn too_many_requests_outweigh_the_cache() {
    let mut policy = load(r#"{"balance_abs": 4}"#, fleet());
    policy.fleet().load("p1").cached_tokens = 600;
    policy.fleet().load("p1").in_flight = 4;
    assert_eq!(pick(&mut policy, 600), "p1");
    policy.fleet().load("p1").in_flight = 5;
    assert_ne!(pick(&mut policy, 600), "p1");
    // Among busy ones five more are no more than half as many again.
    for address in ["p1", "p2", "p3"] {
        policy.fleet().load(address).in_flight += 10;
    }
    assert_eq!(pick(&mut policy, 600), "p1");
}

#[test]
fn too_many_queued_tokens_outweigh_the_cache() {
    let mut policy = load("{}", fleet());
    policy.fleet().load("p1").cached_tokens = 600;
    policy.fleet().load("p1").queued_tokens = 8192;
    assert_eq!(pick(&mut policy, 600), "p1");
    policy.fleet().load("p1").queued_tokens = 8193;
    assert_ne!(pick(&mut policy, 600), "p1");
}

#[test]
fn an_overloaded_instance_does_not_hide_the_next_best_cache() {
    let mut policy = load(r#"{"balance_abs": 1}"#, fleet());
    policy.fleet().load("p1").cached_tokens = 600;
    policy.fleet().load("p1").in_flight = 9;
    policy.fleet().load("p2").cached_tokens = 300;
    policy.fleet().load("p2").in_flight = 1;
    assert_eq!(pick(&mut policy, 600), "p2");
}

#[test]
fn decode_goes_by_load_alone() {
    let mut policy = load("{}", fleet());
    policy.fleet().load("d1").cached_tokens = 600;
    policy.fleet().load("d1").in_flight = 1;
    assert_eq!(policy.pick(Phase::Decode, &prompt(600)).as_deref(), Some("d2"));
}

#[test]
fn it_asks_for_the_cached_tokens() {
    assert!(load("{}", fleet()).policy().manifest().facts.cached_tokens);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let refusal = |config| CacheAware::configure(config).err().unwrap().to_string();
    assert!(refusal(r#"{"cache_threshold": 1.1}"#).starts_with("`cache_threshold` must be from 0 to 1"));
    assert!(refusal(r#"{"balance_rel": 0.9}"#).starts_with("`balance_rel` must be at least 1"));
    assert!(refusal(r#"{"balance_abs": -1}"#).starts_with("`balance_abs`: invalid value"));
    assert!(refusal(r#"{"treshold": 1}"#).contains("`cache_threshold`, `balance_abs`"));
}

/// One decision: the figures it was made on, and the chosen row.
type Decision = (Vec<Candidate>, Candidate);

/// Runs so many requests with one and the same prompt. Who has served it holds
/// it in its cache; beyond `open` requests the oldest one ends.
fn hot_prefix(config: &str, instances: usize, tokens: u32, open: usize, requests: usize) -> Vec<Decision> {
    let fleet = (0..instances).fold(testing::fleet(), |fleet, n| fleet.prefill(&format!("p{n}")));
    let mut policy = load(config, fleet);
    let mut running: VecDeque<String> = VecDeque::new();
    let mut decisions = Vec::new();
    for _ in 0..requests {
        if running.len() == open
            && let Some(oldest) = running.pop_front()
        {
            let load = policy.fleet().load(&oldest);
            load.in_flight -= 1;
            load.queued_tokens -= tokens;
        }
        let figures = policy.fleet().candidates(Phase::Prefill).iter().collect();
        let picked = pick(&mut policy, tokens);
        let load = policy.fleet().load(&picked);
        decisions.push((figures, *load));
        load.in_flight += 1;
        load.queued_tokens += tokens;
        load.cached_tokens = tokens;
        running.push_back(picked);
    }
    decisions
}

#[test]
fn within_the_limits_a_prompt_stays_on_one_instance() {
    let decisions = hot_prefix("{}", 4, 100, 60, 300);
    assert!(decisions.iter().all(|(_, chosen)| chosen.id == decisions[0].1.id));
}

proptest! {
    /// However hot a prefix is, an instance is given one more request only
    /// while it is within the limits, so it never passes them by more than
    /// that one.
    #[test]
    fn a_hot_prefix_never_drowns_an_instance(
        instances in 2..8_usize,
        balance_abs in 0..20_u32,
        balance_tokens_abs in 0..20_000_u32,
        balance_rel in 1.0..3.0_f64,
        tokens in 1..5_000_u32,
        open in 1..100_usize,
    ) {
        let config = format!(
            r#"{{"balance_abs": {balance_abs}, "balance_rel": {balance_rel}, "balance_tokens_abs": {balance_tokens_abs}}}"#
        );
        let limit = |least: u32, abs| (f64::from(least) + f64::from(abs)).max(f64::from(least) * balance_rel);
        for (figures, chosen) in hot_prefix(&config, instances, tokens, open, 300) {
            let requests = figures.iter().map(|row| row.in_flight).min().unwrap();
            let queued = figures.iter().map(|row| row.queued_tokens).min().unwrap();
            prop_assert!(f64::from(chosen.in_flight) <= limit(requests, balance_abs));
            prop_assert!(f64::from(chosen.queued_tokens) <= limit(queued, balance_tokens_abs));
        }
    }
}
