//! Decode fails before its answer: another engine, or another attempt; a handle is never used twice.

use anyhow::Result;
use edge_router_tests::engine::Fault;
use edge_router_tests::fleet::Fleet;

use tokio::time::{Duration, sleep};

use super::{Scene, assert_error};
use crate::load::{CHAT, chat};

#[tokio::test]
async fn one_that_refuses_connections_has_not_seen_the_handle() -> Result<()> {
    let scene = Scene::new(1, 2).await?;
    scene.fleet.decode[0].kill().await;
    for stream in [false, true, false, true] {
        scene.served(stream).await?;
    }
    assert!(scene.count("retries", "leg=\"decode\"").await? >= 1.0);
    // One prefill a request: the other engine was given the same handle.
    assert_eq!(scene.generations(), (vec![4], vec![0, 4]));
    assert_eq!(scene.fleet.decode[1].counters().remote_loads, 4);
    assert_eq!(scene.count("orphaned_handles", "").await?, 0.0);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn with_no_engine_left_the_handle_is_counted_as_an_orphan() -> Result<()> {
    let mut scene = Scene::new(1, 1).await?;
    scene.fleet.decode[0].kill().await;
    for stream in [false, true] {
        assert_error(&scene.answer(stream).await?, 502, "engine_unreachable");
    }
    // There is nobody left to refuse what would give them back; that is found out in the background.
    while scene.count("orphaned_handles", "").await? < 2.0 {
        sleep(Duration::from_millis(10)).await;
    }
    scene.fleet.expect_pinned(2);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_handle_that_nobody_takes_is_given_back_at_once() -> Result<()> {
    for (enabled, pinned) in [("true", 0), ("false", 1)] {
        let mut fleet = Fleet::start(1, 2).await?;
        // No connection that a probe has left idle: whether an engine that closes one has seen a request is not known.
        let rarely = ["--retries", "0", "--probe-interval-ms", "3600000", "--pool-idle-ms", "1"];
        let rarely = rarely.into_iter().chain(["--release-unused-kv", enabled]);
        let router = rarely.fold(fleet.router(), |router, arg| router.arg(arg)).start().await?;
        fleet.decode[0].kill().await;
        // In turn: one of two goes to the engine that is gone.
        let mut failed = 0;
        for _ in 0..2 {
            let status = router.post_json(CHAT, &chat(1)).await?.status;
            assert!(status == 200 || status == 502, "{status}");
            failed += usize::from(status == 502);
        }
        assert_eq!(failed, 1);
        fleet.expect_pinned(pinned);
        fleet.assert_quiescent().await;
        let (released, orphaned) =
            ("edge_router_released_handles_total", "edge_router_orphaned_handles_total");
        let counted = if pinned == 0 { released } else { orphaned };
        while router.metrics().await?.sum(counted, &[]) < 1.0 {
            sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_failed_transfer_is_made_good_by_a_fresh_attempt() -> Result<()> {
    for prefills in [1, 2] {
        let mut scene = Scene::new(prefills, 1).await?;
        for stream in [false, true] {
            // As if the KV cache could not be fetched: the blocks are let go of, and the request fails.
            scene.fleet.decode[0].fault(Fault::status(500).on_decode());
            scene.served(stream).await?;
            assert!(scene.router.status().await?["ready"].as_bool().is_some_and(|ready| ready));
        }
        assert_eq!(scene.count("retries", "leg=\"decode\"").await?, 2.0);
        assert_eq!(scene.generations().1, [4]);
        let decode = scene.fleet.decode[0].counters();
        // What the failed attempts were to fetch.
        scene.fleet.expect_pinned(2);
        let other_prefill = prefills == 2;
        assert_eq!(decode.remote_loads, if other_prefill { 2 } else { 0 });
        assert_eq!(decode.local_prefills, if other_prefill { 0 } else { 2 });
    }
    Ok(())
}

#[tokio::test]
async fn a_prefill_engine_that_dies_between_the_legs_costs_no_plain_request() -> Result<()> {
    // Decode does not wait five seconds for a peer that it does not know, but one.
    let fleet = Fleet::start_with(2, 1, |engine| engine.time_scale(0.2)).await?;
    let scene = Scene::of(fleet, |router| router).await?;
    scene.served(false).await?;
    // Its handle is good, and nobody answers where it points to.
    let leaving = &scene.fleet.prefill[1];
    scene.fleet.decode[0].fault(Fault::delay(Duration::from_millis(300)).on_decode());
    let (served, ()) = tokio::join!(scene.served(false), async {
        let pinned = edge_router_tests::patience::eventually("prefill is done", || leaving.pinned() > 0);
        pinned.await.expect("pinned");
        leaving.kill().await;
    });
    served?;
    assert_eq!(scene.fleet.decode[0].counters().failed_loads, 1);
    assert_eq!(scene.fleet.decode[0].counters().remote_loads, 2);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_reset_before_the_answer_is_made_good_elsewhere() -> Result<()> {
    let mut scene = Scene::new(1, 2).await?;
    for stream in [false, true] {
        for decode in &scene.fleet.decode {
            decode.clear_faults();
        }
        let asked_first = scene.generations().1.iter().sum::<usize>() % 2;
        scene.fleet.decode[asked_first].fault(Fault::close_before_headers().on_decode().always());
        scene.served(stream).await?;
    }
    assert!(scene.count("retries", "leg=\"decode\"").await? >= 1.0);
    scene.fleet.expect_pinned_some();
    Ok(())
}

#[tokio::test]
async fn a_reset_by_the_only_engine_is_an_error() -> Result<()> {
    let mut scene = Scene::new(1, 1).await?;
    scene.fleet.decode[0].fault(Fault::close_before_headers().on_decode().always());
    for stream in [false, true] {
        assert_error(&scene.answer(stream).await?, 502, "engine_unreachable");
    }
    // Whether it has let go of what each leg told it to fetch can't be seen.
    let legs = scene.generations().1[0];
    assert_eq!(scene.count("orphaned_handles", "").await?, legs as f64);
    scene.fleet.expect_pinned(legs);
    Ok(())
}

#[tokio::test]
async fn a_handle_that_may_have_been_used_is_not_sent_again() -> Result<()> {
    for decodes in [1, 2] {
        let scene = Scene::new(1, decodes).await?;
        // On a connection that has been used before, which the router may take for one that was closed while idle.
        scene.served(false).await?;
        scene.served(false).await?;
        for decode in &scene.fleet.decode {
            decode.fault(Fault::lose_answer().on_decode());
        }
        scene.served(false).await?;
        let handles: Vec<_> = scene.fleet.decode.iter().flat_map(|decode| decode.requests()).collect();
        let mut ids: Vec<_> = handles
            .iter()
            .map(|leg| leg.json()["kv_transfer_params"]["remote_request_id"].to_string())
            .filter(|id| id != "null")
            .collect();
        let sent = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), sent, "a handle was sent twice");
        scene.fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn an_engine_that_is_silent_for_too_long_is_given_up() -> Result<()> {
    let mut scene = Scene::with(1, 2, |router| router.arg("--decode-timeout-s").arg("1")).await?;
    for decode in &scene.fleet.decode {
        decode.fault(Fault::hang().on_decode());
    }
    assert_error(&scene.answer(false).await?, 504, "engine_timeout");
    // Another would not have been faster.
    assert_eq!(scene.generations().1.iter().sum::<usize>(), 1);
    scene.fleet.expect_pinned(1);
    scene.fleet.assert_quiescent().await;
    Ok(())
}
