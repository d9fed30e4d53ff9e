//! Turns that must not be given what another one left.

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::engine::EngineBuilder;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::json;
use tokio::time::{Duration, sleep};

use super::{GENERATE, Scene, generate, next, opening};

/// The first turn, and the prompt of the second.
async fn begun(scene: &Scene) -> Result<Vec<u32>> {
    scene.right(&scene.client, GENERATE, &generate(&opening())).await?;
    Ok(next(&opening(), &scene.follows(&opening()).await?))
}

#[tokio::test]
async fn another_client_or_conversation() -> Result<()> {
    let mut scene = Scene::new().await?;
    let prompt = begun(&scene).await?;
    let client = |session: &str, key: &str| {
        scene.router.client().header("x-session-id", session).header("authorization", key)
    };
    let nameless = scene.router.client().header("authorization", "Bearer me");
    let keyless = scene.router.client().header("x-session-id", "c1");
    for other in [client("c1", "Bearer you"), client("c2", "Bearer me"), nameless, keyless] {
        scene.right(&other, GENERATE, &generate(&prompt)).await?;
        assert_eq!(scene.readbacks().await?, (0.0, 0));
    }
    // It is still there for whom it is meant. What the prompt's reader has of it already it need not read.
    scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
    assert_eq!(scene.readbacks().await?.0, 1.0);
    // Whoever names a conversation leaves something for its next turn.
    scene.fleet.expect_readbacks(5);
    Ok(())
}

#[tokio::test]
async fn another_history_model_or_salt() -> Result<()> {
    for change in ["history", "model", "salt", "shorter"] {
        let mut scene = Scene::new().await?;
        let prompt = begun(&scene).await?;
        let mut body = generate(&prompt);
        match change {
            "history" => body["token_ids"][0] = json!(900),
            "salt" => body["cache_salt"] = json!("s"),
            "shorter" => body = generate(&prompt[..110]),
            // The engine's only one has two names: its own, and none.
            _ => drop(body.as_object_mut().and_then(|body| body.remove("model"))),
        }
        scene.right(&scene.client, GENERATE, &body).await?;
        assert_eq!((scene.readbacks().await?, scene.orphans().await?), ((0.0, 0), 1.0), "{change}");
        scene.fleet.expect_readbacks(2);
    }
    Ok(())
}

#[tokio::test]
async fn a_second_time() -> Result<()> {
    let mut scene = Scene::new().await?;
    let prompt = begun(&scene).await?;
    for _ in 0..3 {
        scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
        assert_eq!(scene.readbacks().await?, (1.0, 1));
    }
    // What the second and third have put aside, their successors do not go on from.
    assert_eq!(scene.orphans().await?, 2.0);
    scene.fleet.expect_readbacks(3);
    Ok(())
}

#[tokio::test]
async fn after_its_time() -> Result<()> {
    let mut scene = Scene::with(|router| router.arg("--kv-readback-ttl-s").arg("1")).await?;
    let prompt = begun(&scene).await?;
    sleep(Duration::from_millis(1001)).await;
    scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
    assert_eq!(scene.readbacks().await?, (0.0, 0));
    scene.fleet.expect_readbacks(2);
    Ok(())
}

#[tokio::test]
async fn between_engines_of_which_one_does_not_say_that_it_can() -> Result<()> {
    for mute in ["prefill", "decode"] {
        let fleet = Fleet::start_with(2, 1, EngineBuilder::bidirectional).await?;
        let toml = fleet.instances_toml();
        let tables = toml.split_inclusive("[[instance]]\n").map(|table| {
            let label = "bidirectional_kv_xfer = \"true\"";
            if table.contains(&format!("role = \"{mute}\"")) {
                table.replace(label, "zone = \"a\"")
            } else {
                table.to_owned()
            }
        });
        let router = fleet.labelled_router().config_toml(&tables.collect::<String>());
        let mut scene = Scene::of(fleet, router).await?;
        let prompt = begun(&scene).await?;
        scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
        assert_eq!(scene.readbacks().await?, (0.0, 0), "{mute}");
        scene.fleet.expect_readbacks(2);
    }
    Ok(())
}

#[tokio::test]
async fn unless_it_is_switched_on() -> Result<()> {
    let mut fleet = Fleet::start_with(2, 1, EngineBuilder::bidirectional).await?;
    fleet.expect_readbacks(2);
    let router: Router = fleet.labelled_router().start().await?;
    let client: Client = router.client().header("x-session-id", "c1");
    let scene = Scene { fleet, router, client };
    let prompt = begun(&scene).await?;
    scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
    assert_eq!(scene.readbacks().await?, (0.0, 0));
    Ok(())
}
