//! What the router counts as in flight is what is in flight.

use anyhow::{Result, ensure};
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::prometheus::Samples;
use edge_router_tests::router::Router;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep, timeout};

use crate::load::{CHAT, all_right, chat};

async fn in_flight(router: &Router, engine: &Engine) -> Result<f64> {
    let label = format!("instance=\"{}\"", engine.address());
    Ok(router.metrics().await?.sum("edge_router_instance_in_flight", &[&label]))
}

#[tokio::test]
async fn two_hundred_clients_that_leave_leave_nothing_behind() -> Result<()> {
    let slow = Duration::from_millis(3);
    let mut fleet =
        Fleet::start_with(2, 2, |engine| engine.token_delay(slow).prefill_per_1k(slow * 200)).await?;
    fleet.expect_pinned_some();
    let router = fleet.router().patient().policy("cache_aware.wasm").start().await?;
    // Some leave while they are being tried elsewhere.
    fleet.prefill[0].fault(Fault::status(503).on_prefill().times(10));
    fleet.decode[0].fault(Fault::status(503).on_decode().times(10));
    let mut clients = JoinSet::new();
    for turn in 0..200_u64 {
        let client = router.client();
        clients.spawn(async move {
            let patience = Duration::from_millis(turn * 7919 % 70);
            let asked = async {
                let mut stream = client.stream(CHAT, &chat(turn as usize)).await?;
                while stream.next_bytes().await?.is_some() {}
                anyhow::Ok(())
            };
            timeout(patience, asked).await.is_err()
        });
        if clients.len() >= 20 {
            clients.join_next().await;
        }
    }
    while clients.join_next().await.is_some() {}
    for engine in fleet.prefill.iter().chain(&fleet.decode) {
        eventually("engines are idle", || engine.running() + engine.waiting() == 0).await?;
    }
    let metrics = settled(&router).await?;
    for gauge in ["edge_router_instance_in_flight", "edge_router_instance_queued_tokens"] {
        let series: Vec<_> = metrics.series().filter(|series| series.starts_with(gauge)).collect();
        assert_eq!(series.len(), 4);
        assert!(series.iter().all(|series| metrics.get(series) == Some(0.0)), "{series:?}");
    }
    let ended = metrics.sum("edge_router_requests_total", &[]);
    let left = metrics.sum("edge_router_requests_cancelled_total", &[]);
    assert!(left > 0.0 && ended + left <= 200.0, "{ended} ended, {left} left");
    assert_eq!(metrics.sum("edge_router_instance_healthy", &[]), 4.0);
    fleet.prefill.iter().chain(&fleet.decode).for_each(Engine::clear_faults);
    all_right(&fleet, &router, 8, 2).await
}

/// The metrics once nothing is in flight.
pub(crate) async fn settled(router: &Router) -> Result<Samples> {
    for _ in 0..3000 {
        let metrics = router.metrics().await?;
        if metrics.sum("edge_router_instance_in_flight", &[]) == 0.0 {
            return Ok(metrics);
        }
        sleep(Duration::from_millis(10)).await;
    }
    anyhow::bail!("still in flight: {}", router.status().await?)
}

#[tokio::test]
async fn streams_that_are_held_are_seen_and_new_ones_go_elsewhere() -> Result<()> {
    let fleet = Fleet::start(1, 2).await?;
    let router = fleet
        .router()
        .patient()
        .policy("least_loaded.wasm")
        .arg("--probe-interval-ms")
        .arg("50")
        .env("ADMIN_API_KEY", "key")
        .start()
        .await?;
    let (busy, free) = (&fleet.decode[0], &fleet.decode[1]);
    let admin = router.client().header("x-api-key", "key");
    let named = json!({ "instance": free.address() });
    admin.post_json("/instances/drain", &named).await?.ok()?;
    busy.fault(Fault::stall_after(1).on_decode().always());
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut stream = router.stream(CHAT, &chat(0)).await?;
        ensure!(stream.next_event().await?.is_some());
        held.push(stream);
    }
    admin.post_json("/instances/resume", &named).await?.ok()?;
    let probed = busy.seen().len();
    let mut turn = 0;
    // Over several probes, and what they report of the load.
    while turn < 10 || busy.seen().len() < probed + 9 {
        let said = router.stream(CHAT, &chat(0)).await?.transcript().await?;
        assert!(said.done);
        assert_eq!(in_flight(&router, busy).await?, 10.0);
        turn += 1;
    }
    assert_eq!(busy.requests().len(), 10);
    assert_eq!(free.requests().len(), turn);
    assert_eq!(in_flight(&router, free).await?, 0.0);
    drop(held);
    assert_eq!(settled(&router).await?.sum("edge_router_instance_in_flight", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn a_limit_holds_and_the_client_is_told_to_come_again() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--max-in-flight").arg("2").start().await?;
    fleet.decode[0].fault(Fault::stall_after(1).on_decode().times(2));
    let mut held = vec![router.stream(CHAT, &chat(0)).await?, router.stream(CHAT, &chat(2)).await?];
    let refused = router.post_json(CHAT, &chat(1)).await?;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "instances_saturated");
    held.clear();
    settled(&router).await?;
    assert_eq!(router.post_json(CHAT, &chat(1)).await?.status, 200);
    Ok(())
}
