//! Encoders in front of every connector, and policies that choose among them.

use anyhow::Result;
use edge_router_tests::engine::{Connector, Fault};
use edge_router_tests::fleet::Fleet;

use super::{Scene, chat, image, streamed, text, video};

#[tokio::test]
async fn every_connector_hands_over_prompts_with_media() -> Result<()> {
    for (policy, config, connector) in [
        ("nixl.wasm", "{}", Connector::NixlPull),
        ("nixl_push.wasm", "{}", Connector::NixlPush),
        ("nixl_push.wasm", r#"{"concurrent":true}"#, Connector::NixlPush),
        ("moriio.wasm", "{}", Connector::MoriioRead),
        ("moriio.wasm", "{}", Connector::MoriioWrite),
        ("moriio.wasm", r#"{"concurrent":true}"#, Connector::MoriioWrite),
        ("mooncake.wasm", "{}", Connector::Mooncake),
    ] {
        let fleet = Fleet::start_with(1, 2, |engine| engine.connector(connector.clone())).await?;
        let fleet = fleet.with_encoders(2).await?;
        let name = policy.trim_end_matches(".wasm");
        let router = fleet.labelled_router().patient().policy("least_loaded.wasm").policy(policy);
        let router = router.arg("--policy-config").arg(&format!("{name}={config}")).start().await?;
        let scene = Scene { fleet, router };
        scene.served(&chat(&[text(), image("a"), video("b")])).await?;
        scene.served(&streamed(chat(&[image("c"), image("d"), text()]))).await?;
        assert_eq!(scene.fleet.encodings(), 0, "{policy} {config}");
        assert_eq!(scene.count("fallbacks", "").await?, 0.0, "{policy} {config}");
        let loads: u64 = scene.fleet.decode.iter().map(|decode| decode.counters().remote_loads).sum();
        assert_eq!(loads, 2, "{policy} {config}");
    }
    Ok(())
}

#[tokio::test]
async fn policies_choose_the_encoders() -> Result<()> {
    for policy in ["round_robin.wasm", "least_loaded.wasm", "cache_aware.wasm", "session_affinity.wasm"] {
        let scene = Scene::with(2, 2, 2, |router| router.patient().policy(policy)).await?;
        for round in 0..3 {
            let name = format!("{policy} {round}");
            scene.served(&chat(&[video(&name), image(&name), video("same"), text()])).await?;
        }
        assert_eq!(scene.fleet.encodings(), 0);
        assert!(scene.fleet.encode.iter().all(|encoder| !encoder.requests().is_empty()), "{policy}");
    }
    Ok(())
}

/// With its opening held back, a stream that can't get its encodings counts as one that has not begun.
#[tokio::test]
async fn a_stream_that_fails_before_its_first_word_is_tried_again() -> Result<()> {
    let fleet = Fleet::of_consumers(1, 1).await?;
    let consumer = &fleet.decode[0];
    let router = fleet.router().prefill(consumer).arg("--hold-opening-ms").arg("30000").start().await?;
    consumer.fault(Fault::error_after(0));
    let scene = Scene { fleet, router };
    scene.served(&streamed(chat(&[image("a"), text()]))).await?;
    assert_eq!(scene.legs(), [2, 0, 2]);
    Ok(())
}
