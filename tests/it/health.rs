//! What takes an instance out, what brings it back, and what does neither.

use anyhow::{Context, Result};
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::Value;
use tokio::time::{Duration, sleep};

use crate::load::{CHAT, all_right, chat};

/// What `/status` says of an engine.
async fn figure(router: &Router, engine: &Engine, key: &str) -> Result<Value> {
    let status = router.status().await?;
    let all = status["instances"].as_array().context("no instances")?;
    let one = all.iter().find(|instance| instance["address"] == engine.address());
    Ok(one.context("not there")?[key].clone())
}

async fn becomes(router: &Router, engine: &Engine, state: &str) -> Result<()> {
    for _ in 0..3000 {
        if figure(router, engine, "state").await? == state {
            return Ok(());
        }
        sleep(Duration::from_millis(10)).await;
    }
    anyhow::bail!("never {state}: {}", router.status().await?)
}

/// Only requests and the first probe decide.
fn unprobed(fleet: &Fleet) -> RouterBuilder {
    fleet.router().arg("--probe-interval-ms").arg("3600000").arg("--cool-down-ms").arg("3600000")
}

#[tokio::test]
async fn refusals_and_clients_that_leave_change_no_health() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let router = unprobed(&fleet).arg("--unhealthy-after").arg("2").start().await?;
    let decode = &fleet.decode[0];
    for status in [400, 401, 404, 413, 422, 429] {
        decode.fault(Fault::status(status).on_decode().times(5));
        for turn in 0..5 {
            assert_eq!(router.post_json(CHAT, &chat(turn)).await?.status, status);
        }
    }
    let before = decode.requests().len();
    decode.fault(Fault::hang().on_decode().times(5));
    for turn in 0..5 {
        let client = router.client();
        let leaving = tokio::spawn(async move { client.post_json(CHAT, &chat(turn)).await });
        eventually("decode is at it", || decode.requests().len() == before + turn + 1).await?;
        leaving.abort();
    }
    eventually("all have been let go", || decode.requests().iter().all(|r| r.end.is_some())).await?;
    assert_eq!(figure(&router, decode, "state").await?, "healthy");
    assert_eq!(figure(&router, decode, "failures").await?, 0);
    assert_eq!(router.post_json(CHAT, &chat(1)).await?.status, 200);
    // What is refused by a fault or never looked at lets go of nothing.
    fleet.expect_pinned(35);
    Ok(())
}

#[tokio::test]
async fn one_failure_takes_nothing_out() -> Result<()> {
    let fleet = Fleet::start(1, 2).await?;
    let router = unprobed(&fleet).start().await?;
    let first = &fleet.decode[0];
    first.kill().await;
    assert_eq!(router.post_json(CHAT, &chat(1)).await?.status, 200);
    assert_eq!(figure(&router, first, "state").await?, "healthy");
    // None at all if an old connection was tried first: that says nothing.
    assert!(figure(&router, first, "failures").await?.as_u64() <= Some(1));
    first.restart().await?;
    all_right(&fleet, &router, 8, 1).await?;
    assert!(!first.requests().is_empty());
    assert_eq!(figure(&router, first, "failures").await?, 0);
    Ok(())
}

#[tokio::test]
async fn failures_in_a_row_do_whatever_the_probes_say() -> Result<()> {
    let mut fleet = Fleet::start(1, 2).await?;
    let router = fleet
        .router()
        .arg("--probe-interval-ms")
        .arg("50")
        .arg("--cool-down-ms")
        .arg("3600000")
        .start()
        .await?;
    let first = &fleet.decode[0];
    first.fault(Fault::status(502).on_decode().always());
    all_right(&fleet, &router, 8, 1).await?;
    assert_eq!(figure(&router, first, "state").await?, "unhealthy");
    router.wait_for_log("instance can't be used").await?;
    let (asked, probed) = (first.requests().len(), first.seen().len());
    eventually("probes went on", || first.seen().len() > probed + 6).await?;
    all_right(&fleet, &router, 8, 2).await?;
    assert_eq!(first.requests().len(), asked, "an engine that fails is asked again");
    fleet.expect_pinned(asked);
    Ok(())
}

#[tokio::test]
async fn a_probe_brings_it_back() -> Result<()> {
    let fleet = Fleet::start(1, 2).await?;
    let settings = ["--probe-interval-ms", "50", "--cool-down-ms", "100", "--unhealthy-after", "2"];
    let router = settings.iter().fold(fleet.router(), |router, arg| router.arg(arg)).start().await?;
    let first = &fleet.decode[0];
    for fault in [Fault::status(503), Fault::close_before_headers()] {
        first.fault(fault.on_path("/health").always());
        becomes(&router, first, "unhealthy").await?;
        let asked = first.requests().len();
        all_right(&fleet, &router, 4, 1).await?;
        assert_eq!(first.requests().len(), asked);
        first.clear_faults();
        becomes(&router, first, "healthy").await?;
        all_right(&fleet, &router, 4, 1).await?;
        assert!(first.requests().len() > asked);
    }
    router.wait_for_log_times("instance can't be used", 2).await?;
    Ok(())
}

#[tokio::test]
async fn half_the_fleet_dead_costs_no_request() -> Result<()> {
    let fleet = Fleet::start(2, 2).await?;
    let router = fleet.router().start().await?;
    all_right(&fleet, &router, 8, 4).await?;
    fleet.prefill[0].kill().await;
    fleet.decode[1].kill().await;
    all_right(&fleet, &router, 40, 8).await?;
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn with_nobody_left_the_client_is_told_to_come_again() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--probe-interval-ms").arg("50").start().await?;
    fleet.decode[0].kill().await;
    becomes(&router, &fleet.decode[0], "unhealthy").await?;
    let answer = router.post_json(CHAT, &chat(1)).await?;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert_eq!(answer.json()["error"]["message"], "no decode instance is available: none is healthy");
    let ready = router.get("/readyz").await?;
    assert_eq!(
        (ready.status, &*ready.text()),
        (503, "no decode instance is healthy and not being drained\n")
    );
    assert!(fleet.prefill[0].requests().is_empty(), "a prompt was computed for nobody");
    fleet.decode[0].restart().await?;
    becomes(&router, &fleet.decode[0], "healthy").await?;
    assert_eq!(router.post_json(CHAT, &chat(1)).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn an_engine_that_starts_after_the_router_is_used() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    fleet.decode[0].kill().await;
    let router = fleet.router().no_wait().start().await?;
    assert_eq!(router.get("/readyz").await?.status, 503);
    fleet.decode[0].restart().await?;
    becomes(&router, &fleet.decode[0], "healthy").await?;
    becomes(&router, &fleet.prefill[0], "healthy").await?;
    all_right(&fleet, &router, 4, 2).await?;
    assert_eq!(fleet.decode[0].counters().remote_loads, 4);
    Ok(())
}

#[tokio::test]
async fn engines_that_restart_on_their_ports_go_on_being_used() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    for _ in 0..3 {
        all_right(&fleet, &router, 4, 4).await?;
        fleet.prefill[0].restart().await?;
        fleet.decode[0].restart().await?;
    }
    all_right(&fleet, &router, 8, 1).await?;
    assert_eq!(fleet.decode[0].counters().remote_loads, 8);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn the_first_instance_being_dead_hides_no_models() -> Result<()> {
    let fleet = Fleet::start(1, 2).await?;
    let router = unprobed(&fleet).start().await?;
    fleet.decode[0].kill().await;
    for _ in 0..4 {
        let answer = router.get("/v1/models").await?.ok()?;
        assert_eq!(answer.json()["data"][0]["id"], "sim");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    Ok(())
}
