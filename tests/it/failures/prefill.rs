//! Prefill fails: another prefill engine takes over, else decode computes the prompt itself.

use anyhow::Result;
use edge_router_tests::engine::Fault;
use serde_json::{Value, json};

use super::{Scene, assert_error};

#[tokio::test]
async fn another_prefill_engine_takes_over() -> Result<()> {
    for fault in [
        Fault::status(500),
        Fault::status(503).header("retry-after", "7"),
        Fault::status(200).body("application/json", "this is not JSON"),
        Fault::status(200).body("text/html", super::PAGE),
        Fault::status(200).body("application/json", "[1, 2]"),
        Fault::error_event(),
    ] {
        let scene = Scene::new(2, 1).await?;
        for (turn, stream) in [false, true].into_iter().enumerate() {
            for prefill in &scene.fleet.prefill {
                prefill.clear_faults();
            }
            // The turn decides which of the two is asked first.
            scene.fleet.prefill[turn].fault(fault.clone().on_prefill());
            scene.served(stream).await?;
        }
        assert!(scene.count("retries", "leg=\"prefill\"").await? >= 1.0, "{fault:?}");
        assert_eq!(scene.count("fallbacks", "").await?, 0.0, "{fault:?}");
        assert_eq!(scene.fleet.decode[0].counters().remote_loads, 2, "{fault:?}");
        assert_eq!(scene.generations().1, [2], "{fault:?}");
        scene.fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn one_that_refuses_connections_costs_no_request() -> Result<()> {
    let scene = Scene::new(2, 1).await?;
    scene.fleet.prefill[0].kill().await;
    for stream in [false, true, false, true] {
        scene.served(stream).await?;
    }
    assert!(scene.count("retries", "leg=\"prefill\"").await? >= 1.0);
    assert_eq!(scene.count("fallbacks", "").await?, 0.0);
    assert_eq!(scene.generations(), (vec![0, 4], vec![4]));
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn without_another_decode_computes_the_prompt() -> Result<()> {
    for (fault, kind) in [
        (Fault::status(500), "prefill_failed"),
        (Fault::status(503), "prefill_failed"),
        (Fault::status(200).body("application/json", "{"), "prefill_failed"),
        (Fault::close_before_headers(), "prefill_failed"),
        (Fault::kv_params(Value::Null), "no_handle"),
        (Fault::kv_params(json!({})), "no_handle"),
    ] {
        let scene = Scene::new(1, 1).await?;
        scene.fleet.prefill[0].fault(fault.clone().on_prefill().always());
        for stream in [false, true] {
            scene.served(stream).await?;
        }
        assert_eq!(scene.count("fallbacks", &format!("kind=\"{kind}\"")).await?, 2.0, "{fault:?}");
        assert_eq!(scene.count("fallbacks", "").await?, 2.0, "{fault:?}");
        let decode = scene.fleet.decode[0].counters();
        assert_eq!((decode.local_prefills, decode.remote_loads), (2, 0), "{fault:?}");
        scene.router.wait_for_log("decode computes the prompt itself").await?;
        scene.fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_answer() -> Result<()> {
    let mut scene = Scene::new(1, 1).await?;
    scene.fleet.prefill[0].fault(Fault::close_after_headers().on_prefill());
    scene.served(false).await?;
    assert_eq!(scene.count("fallbacks", "kind=\"prefill_failed\"").await?, 1.0);
    // The engine had finished; nobody was told where its blocks are.
    scene.fleet.expect_pinned(1);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn the_whole_leg_has_a_time_limit() -> Result<()> {
    for (fault, pinned) in [(Fault::hang(), 0), (Fault::stall_after(0), 1)] {
        let mut scene = Scene::with(1, 1, |router| router.arg("--prefill-timeout-s").arg("1")).await?;
        scene.fleet.prefill[0].fault(fault.clone().on_prefill());
        scene.served(true).await?;
        assert_eq!(scene.count("fallbacks", "kind=\"prefill_failed\"").await?, 1.0, "{fault:?}");
        scene.fleet.expect_pinned(pinned);
        scene.fleet.assert_quiescent().await;
        assert!(scene.fleet.prefill[0].requests()[0].aborted(), "{fault:?}: still at it");
    }
    Ok(())
}

#[tokio::test]
async fn half_a_handle_never_reaches_decode() -> Result<()> {
    let whole = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]], "remote_engine_id": "e",
        "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1,
    });
    let mut halves = vec![json!({ "do_remote_prefill": true }), json!("text"), json!([1])];
    for key in ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"] {
        let mut half = whole.clone();
        half[key] = Value::Null;
        halves.push(half);
    }
    let mut scene = Scene::new(1, 1).await?;
    for half in &halves {
        scene.fleet.prefill[0].fault(Fault::kv_params(half.clone()).on_prefill());
        scene.served(true).await?;
    }
    assert_eq!(scene.count("fallbacks", "").await?, halves.len() as f64);
    assert_eq!(scene.fleet.decode[0].counters().local_prefills, halves.len() as u64);
    // All that prefill said something of has been pinned and never fetched: the router counts it.
    assert_eq!(scene.count("orphaned_handles", "").await?, halves.len() as f64);
    scene.fleet.expect_pinned(scene.fleet.prefill[0].pinned());
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_prompt_whose_first_token_is_a_stop_is_handed_over_all_the_same() -> Result<()> {
    let scene = Scene::new(1, 1).await?;
    for stream in [false, true] {
        scene.fleet.prefill[0].fault(Fault::finish_with_stop().on_prefill());
        scene.served(stream).await?;
    }
    assert_eq!(scene.count("fallbacks", "").await?, 0.0);
    assert_eq!(scene.fleet.decode[0].counters().remote_loads, 2);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn who_wants_no_fallback_gets_the_error() -> Result<()> {
    let scene = Scene::with(1, 1, |router| router.arg("--without-prefill").arg("reject")).await?;
    for (fault, status, code) in [
        (Fault::status(500), 502, "engine_failed"),
        (Fault::status(503), 503, "instances_saturated"),
        (Fault::status(200).body("application/json", "{"), 502, "engine_answer_cut"),
    ] {
        scene.fleet.prefill[0].fault(fault.on_prefill());
        let answer = scene.answer(true).await?;
        assert_error(&answer, status, code);
        assert_eq!(answer.header("retry-after").is_some(), status == 503);
        scene.fleet.prefill[0].clear_faults();
        scene.served(true).await?;
    }
    assert_eq!(scene.generations().1, [3]);
    scene.fleet.assert_quiescent().await;
    Ok(())
}
