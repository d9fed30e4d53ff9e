//! What a close reading of the router found, and must not come back.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use tokio::time::{Duration, sleep};

use crate::load::{CHAT, chat};
use crate::policies::test_policy;

fn configure(dir: &Path, config: &str) -> Result<()> {
    fs::write(dir.join("p.tmp"), config)?;
    Ok(fs::rename(dir.join("p.tmp"), dir.join("p.json"))?)
}

/// Every second call of one hook fails, and all others go well, several of them in each request.
#[tokio::test]
async fn a_version_that_fails_in_one_hook_only_is_replaced_by_the_one_before() -> Result<()> {
    for hook in ["schedule", "merge_kv_params"] {
        let dir = tempfile::tempdir()?;
        fs::copy(test_policy("faulty"), dir.path().join("p.wasm"))?;
        configure(dir.path(), r#"{"hook":"observe","fault":"error"}"#)?;
        let fleet = Fleet::start(1, 1).await?;
        let router = fleet.router().policies_dir(dir.path()).policy("p.wasm").start().await?;
        // The loader's trial calls `schedule` twice, and `merge_kv_params` once.
        let every = if hook == "schedule" { 3 } else { 2 };
        configure(dir.path(), &format!(r#"{{"hook":"{hook}","fault":"trap","every":{every}}}"#))?;
        router.wait_for_log("policy reloaded").await?;
        let back = || router.log().iter().any(|line| line.contains("the version before it is back"));
        for turn in 0..2000 {
            assert_eq!(router.post_json(CHAT, &chat(turn * 2 + 1)).await?.status, 200);
            if back() {
                break;
            }
        }
        assert!(back(), "{hook}: it goes on failing");
        let policy = router.status().await?["policies"][0].clone();
        let error = policy["last_error"].as_str().context("no error")?;
        assert!(error.contains("failed again and again"), "{error}");
    }
    Ok(())
}

/// The server does not ask for the end of a body whose length is known.
#[tokio::test]
async fn an_answer_of_known_length_that_is_passed_on_counts_as_answered() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    fleet.expect_pinned(2);
    let router = fleet.router().start().await?;
    for page in ["<html>no</html>", ""] {
        let fault = Fault::status(404).body("text/html", page);
        fleet.decode[0].fault(fault.on_decode());
        let answer = router.post_json(CHAT, &chat(1)).await?;
        assert_eq!((answer.status, &*answer.text()), (404, page));
    }
    for _ in 0..500 {
        let metrics = router.metrics().await?;
        let answered = metrics.sum("edge_router_requests_total", &["status=\"404\""]);
        let left = metrics.sum("edge_router_requests_cancelled_total", &[]);
        assert_eq!(left, 0.0, "counted as clients that left");
        assert_eq!(metrics.sum("edge_router_time_to_first_token_seconds_count", &[]), 0.0, "no token came");
        if answered == 2.0 {
            return Ok(());
        }
        sleep(Duration::from_millis(10)).await;
    }
    anyhow::bail!("not counted: {:?}", router.metrics().await?.series().collect::<Vec<_>>())
}

/// Else a load balancer would take a busy router out, and with it the answers that are under way.
#[tokio::test]
async fn a_fleet_at_its_limit_is_ready_all_the_same() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--max-in-flight").arg("1").start().await?;
    fleet.decode[0].fault(Fault::hang().on_decode());
    let client = router.client();
    let waiting = tokio::spawn(async move { client.post_json(CHAT, &chat(1)).await });
    eventually("decode is at it", || !fleet.decode[0].requests().is_empty()).await?;
    let refused = router.post_json(CHAT, &chat(3)).await?;
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (503, Some("instances_saturated"))
    );
    assert_eq!(router.get("/readyz").await?.status, 200);
    waiting.abort();
    fleet.expect_pinned(1);
    Ok(())
}

/// A handle names the instance that will fetch it, so another one has no use for it.
#[tokio::test]
async fn a_handle_made_for_one_decode_instance_is_not_given_to_another() -> Result<()> {
    let fleet = Fleet::start(1, 2).await?;
    let paired = test_policy("paired").display().to_string();
    let router = fleet.router().policy(&paired).arg("--probe-interval-ms").arg("3600000").start().await?;
    fleet.decode[0].kill().await;
    for turn in 0..4 {
        assert_eq!(router.post_json(CHAT, &chat(turn * 2 + 1)).await?.status, 200);
    }
    // Without the requests by which unused KV caches are given back.
    let pairs = |engine: &Engine| -> Vec<_> {
        let bodies = engine.requests().into_iter().map(|request| request.json());
        bodies.filter(|body| body["model"] == "sim").map(|body| body["x_pair"].clone()).collect()
    };
    let (told, came) = (pairs(&fleet.prefill[0]), pairs(&fleet.decode[1]));
    let made_for_it: Vec<_> = told.iter().filter(|pair| pair[1] == came[0][1]).collect();
    assert_eq!(made_for_it, came.iter().collect::<Vec<_>>(), "{told:?}");
    let unused = told.len() - came.len();
    assert!(unused > 0, "the dead instance was never chosen");
    eventually("what was not used is given back", || fleet.prefill[0].pinned() == 0).await?;
    fleet.assert_quiescent().await;
    let metrics = router.metrics().await?;
    assert_eq!(metrics.sum("edge_router_orphaned_handles_total", &[]), 0.0);
    assert_eq!(metrics.sum("edge_router_released_handles_total", &[]) as usize, unused);
    Ok(())
}
