//! Legs that were asked to run together and can't: one after the other, and right all the same.

use anyhow::Result;
use edge_router_tests::engine::{Connector, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::router::RouterBuilder;
use tokio::time::Instant;

use super::{ask, by_requests, same, story};

/// A router with this policy, which is told to run both legs at once.
fn concurrent(router: RouterBuilder, policy: &str) -> RouterBuilder {
    let config = format!("{policy}={{\"concurrent\":true}}");
    let policies = [format!("{policy}.wasm"), "plain.wasm".to_owned()];
    let router = policies.iter().fold(router, |router, policy| router.policy(policy));
    by_requests(router.patient()).arg("--policy-config").arg(&config)
}

/// Whether decode is asked after prefill has answered; how often it has loaded a KV cache.
async fn loads_one_by_one(fleet: &Fleet, router: RouterBuilder) -> Result<u64> {
    let router = router.start().await?;
    let (prefill, decode) = (&fleet.prefill[0], &fleet.decode[0]);
    for stream in [false, true] {
        prefill.fault(Fault::hold());
        let asked = ask(router.client(), story(stream));
        eventually("prefill is at it", || prefill.held() == 1).await?;
        let released = Instant::now();
        prefill.clear_faults();
        same(fleet, asked, &story(stream)).await?;
        let decoded = decode.requests().pop().expect("it was asked");
        assert!(decoded.at >= released, "decode was asked before prefill had answered");
    }
    Ok(decode.counters().remote_loads)
}

#[tokio::test]
async fn what_decode_reads_must_be_there_first() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| engine.connector(Connector::MoriioRead)).await?;
    assert_eq!(loads_one_by_one(&fleet, concurrent(fleet.labelled_router(), "moriio")).await?, 2);
    Ok(())
}

#[tokio::test]
async fn push_without_labels_waits_for_prefills_answer() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| engine.connector(Connector::NixlPush)).await?;
    assert_eq!(loads_one_by_one(&fleet, concurrent(fleet.router(), "nixl_push")).await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_policy_that_knows_too_little_leaves_plain_legs() -> Result<()> {
    for (connector, policy) in [(Connector::MoriioWrite, "moriio"), (Connector::Mooncake, "mooncake")] {
        let mut fleet = Fleet::start_with(1, 1, |engine| engine.connector(connector.clone())).await?;
        // Prefill misses the question for its KV cache.
        fleet.expect_violations();
        assert_eq!(loads_one_by_one(&fleet, concurrent(fleet.router(), policy)).await?, 0, "{policy}");
        assert_eq!(fleet.decode[0].counters().local_prefills, 2, "{policy}");
    }
    Ok(())
}
