//! The harness itself: the real router starts, serves, shows itself and stops.

use anyhow::Result;
use edge_router_tests::engine::{Connector, Fault, SharedStore};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::json;

#[tokio::test]
async fn a_router_runs_from_start_to_stop() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let mut router = fleet.router().start().await?;
    let body = json!({ "model": "sim", "prompt": "tell me a story", "max_tokens": 8 });

    let answer = router.post_json("/v1/completions", &body).await?.ok()?;
    assert_eq!(answer.transcript().text(), fleet.baseline("/v1/completions", &body).await?.text());
    assert_eq!(fleet.decode[0].counters().remote_loads, 1);
    fleet.assert_quiescent().await;

    assert_eq!(router.get("/readyz").await?.status, 200);
    assert!(router.metrics().await?.series().count() > 0);
    assert!(router.status().await?.is_object());
    assert!(router.rss_bytes()? > 0 && router.cpu_seconds()? >= 0.0);
    assert!(router.log().iter().any(|line| line.contains(router.address())));

    router.terminate().await?;
    assert!(router.exited().await?.success());
    Ok(())
}

#[tokio::test]
async fn a_stream_is_seen_event_by_event() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    fleet.decode[0].fault(Fault::stall_after(3).on_decode());
    let body = json!({ "model": "sim", "prompt": "tell me a story", "max_tokens": 8, "stream": true });

    let mut stream = router.stream("/v1/completions", &body).await?;
    for _ in 0..3 {
        assert!(stream.next_event().await?.is_some(), "held back");
    }
    drop(stream);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_router_that_cannot_start_says_why() {
    let error = Router::builder().arg("--no-such-flag").start().await.err().map(|error| format!("{error:#}"));
    assert!(error.is_some_and(|error| error.contains("--no-such-flag")), "the log is in the error");
}

/// What an engine says of itself is all that its connector's policy needs.
#[tokio::test]
async fn the_labels_of_engines_describe_each_connector_to_the_router() -> Result<()> {
    for (policy, connector) in [
        ("nixl_push.wasm", Connector::NixlPush),
        ("moriio.wasm", Connector::MoriioRead),
        ("moriio.wasm", Connector::MoriioWrite),
        ("plain.wasm", Connector::Content(SharedStore::default())),
    ] {
        let fleet = Fleet::start_with(1, 2, |engine| engine.connector(connector.clone())).await?;
        let router = fleet.labelled_router().patient().policy(policy).start().await?;
        let body = json!({ "model": "sim", "prompt": "tell me a story of the wind and of the sea", "max_tokens": 8 });
        let answer = router.post_json("/v1/completions", &body).await?.ok()?;
        let right = fleet.baseline("/v1/completions", &body).await?;
        assert_eq!(answer.transcript().text(), right.text(), "{connector:?}");
        let loads: u64 = fleet.decode.iter().map(|engine| engine.counters().remote_loads).sum();
        assert_eq!(loads, 1, "{connector:?}");
        fleet.assert_quiescent().await;
    }
    Ok(())
}
