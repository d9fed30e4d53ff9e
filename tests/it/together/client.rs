//! The client leaves: both engines are told, whatever they are at.

use anyhow::Result;
use edge_router_tests::engine::{End, Fault};
use edge_router_tests::patience::eventually;
use serde_json::json;
use tokio::time::Duration;

use super::{Asked, Scene, ask, kinds, story};

/// The client goes; decode must notice, and the router count it.
async fn leaves(scene: &Scene, asked: Asked) -> Result<()> {
    asked.abort();
    eventually("decode is let go", || scene.fleet.decode[0].requests()[0].aborted()).await?;
    let metrics = crate::in_flight::settled(&scene.router).await?;
    assert_eq!(metrics.sum("edge_router_requests_cancelled_total", &[]), 1.0);
    Ok(())
}

#[tokio::test]
async fn while_both_legs_wait() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 1).await?;
        scene.fleet.prefill[0].fault(Fault::hold());
        let asked = scene.ask(stream);
        scene.both_wait().await?;
        leaves(&scene, asked).await?;
        eventually("prefill is let go", || scene.fleet.prefill[0].requests()[0].aborted()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn while_the_kv_cache_is_on_its_way() -> Result<()> {
    for (system, stream) in kinds() {
        let mut scene = Scene::new(system, 1).await?;
        scene.fleet.expect_pinned_some();
        let (prefill, decode) = (&scene.fleet.prefill[0], &scene.fleet.decode[0]);
        prefill.fault(Fault::slow_read(Duration::from_secs(3600)));
        let asked = scene.ask(stream);
        let answered = || prefill.requests().first().is_some_and(|leg| leg.end == Some(End::Answered));
        eventually("decode waits for the transfer", || answered() && decode.hanging() == 1).await?;
        leaves(&scene, asked).await?;
    }
    Ok(())
}

#[tokio::test]
async fn while_decode_speaks() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::with(system, 1, |engine| engine.token_delay(Duration::from_millis(2))).await?;
        let decode = &scene.fleet.decode[0];
        let (path, mut body) = story(stream);
        body["max_tokens"] = json!(30_000);
        let asked = ask(scene.router.client(), (path, body));
        // A frame is a token; of a whole answer, which is one frame, the first token is counted.
        let speaks = || {
            let frames = decode.requests().first().map_or(0, |leg| leg.frames);
            if stream { frames > 1 } else { decode.counters().generation_tokens > 0 }
        };
        eventually("decode speaks", speaks).await?;
        leaves(&scene, asked).await?;
        assert!(!scene.fleet.prefill[0].requests()[0].aborted(), "{system:?}");
    }
    Ok(())
}
