//! MoRIIO's engines register with the router, for as long as they live (engine contract §3.1).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use edge_router_tests::client::PATIENCE;
use edge_router_tests::engine::{Connector, Engine};
use serde_json::{Value, json};
use tokio::time::timeout;
use zeromq::{RouterSocket, Socket as _, SocketRecv as _};

async fn frame(router: &mut RouterSocket) -> Result<Value> {
    let message = timeout(PATIENCE, router.recv()).await.context("nobody registers")??;
    let frames = message.into_vec();
    ensure!(frames.len() == 2, "identity and one frame, not {}", frames.len());
    Ok(rmp_serde::from_slice(&frames[1])?)
}

#[tokio::test]
async fn the_same_frame_again_and_again_until_the_end() -> Result<()> {
    let mut router = RouterSocket::new();
    let address = router.bind("tcp://127.0.0.1:0").await?.to_string();
    let hasty =
        |engine: edge_router_tests::engine::EngineBuilder| engine.time_scale(0.01).register_with(&address);
    let engine = hasty(Engine::decode().connector(Connector::MoriioRead).dp_size(2)).start().await?;
    let _silent = hasty(Engine::both().connector(Connector::MoriioRead)).start().await?;
    let _other = hasty(Engine::decode().connector(Connector::NixlPull)).start().await?;
    let labels = engine.labels();
    let expected = json!({
        "type": "D", "http_address": engine.address(), "zmq_address": labels[0].1, "dp_size": 2, "tp_size": 1,
        "transfer_mode": "READ",
    });
    for _ in 0..3 {
        assert_eq!(frame(&mut router).await?, expected);
    }
    engine.kill().await;
    // What was under way may still arrive; then nothing does for ten beats.
    while timeout(Duration::from_millis(300), frame(&mut router)).await.is_ok() {}
    engine.restart().await?;
    assert_eq!(frame(&mut router).await?, expected, "it comes back on its old ports");
    Ok(())
}
