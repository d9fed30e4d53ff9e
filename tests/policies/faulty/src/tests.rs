use edge_router_policy::{Edit, testing};

use super::*;

fn faulty(hook: &str, fault: &str, every: u64) -> Faulty {
    Faulty::configure(&format!(r#"{{"hook": "{hook}", "fault": "{fault}", "every": {every}}}"#)).unwrap()
}

fn schedule(policy: &mut Faulty) -> Result<Option<Target>, PolicyError> {
    let candidates = testing::fleet().prefill("p1").prefill("p2").candidates(Phase::Prefill);
    let request = testing::request("/v1/completions");
    policy.schedule(Phase::Prefill, &request.as_request(), &candidates)
}

fn leg(policy: &mut Faulty) -> Leg {
    let request = testing::request("/v1/completions");
    policy.merge_kv_params(&request.as_request(), Pair::default(), None).unwrap().unwrap()
}

#[test]
fn only_every_nth_call_fails() {
    let mut policy = faulty("schedule", "error", 3);
    let failed: Vec<_> = (0..6).map(|_| schedule(&mut policy).is_err()).collect();
    assert_eq!(failed, [false, false, true, false, false, true]);
}

#[test]
fn other_hooks_abstain() {
    let mut policy = faulty("merge_kv_params", "trap", 1);
    assert_eq!(schedule(&mut policy), Ok(None));
    let request = testing::request("/v1/completions");
    assert_eq!(policy.rewrite_prefill(&request.as_request(), Pair::default()), Ok(None));
}

#[test]
fn the_wrong_id_is_not_a_candidate() {
    assert_eq!(schedule(&mut faulty("schedule", "wrong_id", 1)).unwrap().unwrap().instance, 3);
}

#[test]
fn legs_are_what_a_router_must_refuse() {
    let Edit::Set { value, .. } = leg(&mut faulty("merge_kv_params", "oversized_edits", 1)).edits.remove(0)
    else {
        panic!("it sets a field")
    };
    assert!(value.len() > 8 << 20);
    assert_eq!(leg(&mut faulty("merge_kv_params", "forbidden_header", 1)).headers[0].0, "content-length");
    assert_eq!(leg(&mut faulty("merge_kv_params", "bad_edit_json", 1)).edits.len(), 1);
}

#[test]
fn params_are_the_clients_to_say() {
    let mut policy = faulty("merge_kv_params", "params", 1);
    let mut leg = |body| {
        let request = testing::request("/v1/completions").json(body);
        policy.merge_kv_params(&request.as_request(), Pair::default(), None).unwrap()
    };
    assert_eq!(leg("{}"), None);
    let params = Leg::new().set("kv_transfer_params", r#"{"a": 1}"#);
    assert_eq!(leg(r#"{"x_params": {"a": 1}}"#), Some(params));
}

#[test]
#[should_panic(expected = "a fault, as configured")]
fn a_trap_is_a_panic() {
    let _ = schedule(&mut faulty("schedule", "trap", 1));
}

#[test]
fn configure_itself_can_fail() {
    let config = r#"{"hook": "configure", "fault": "error"}"#;
    assert_eq!(Faulty::configure(config).err(), Some("a fault, as configured".into()));
}
