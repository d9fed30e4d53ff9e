//! Encoders that push: who computes the prompt, and on which rank, is chosen before anything is encoded.

use anyhow::Result;
use edge_router_tests::engine::{Engine, Fault, Role};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::json;

use super::{Scene, chat, image, streamed, text, video};

/// A router whose consumers have said where encodings are pushed to.
async fn scene(fleet: Fleet, consumers: &str) -> Result<Scene> {
    let mut toml = String::new();
    let engines = fleet.encode.iter().chain(&fleet.prefill).chain(&fleet.decode);
    for (engine, role) in engines.clone().map(|engine| (engine, role(engine))) {
        let (address, ranks) = (engine.address(), engine.dp_size());
        let labels = if role == consumers { engine.ec_zmq_addrs().join(",") } else { String::new() };
        let labels =
            if labels.is_empty() { labels } else { format!("labels = {{ ec_zmq_addrs = \"{labels}\" }}\n") };
        toml +=
            &format!("[[instance]]\nrole = \"{role}\"\naddress = \"{address}\"\ndp_size = {ranks}\n{labels}");
    }
    let router = engines.fold(Router::builder(), |router, engine| router.knows(engine));
    let router = router.config_toml(&toml).start().await?;
    Ok(Scene { fleet, router })
}

fn role(engine: &Engine) -> &'static str {
    match engine.role() {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Both => "both",
        Role::Encode => "encode",
        Role::Render => "render",
    }
}

/// Nothing is left anywhere: what was pushed was used, by the rank that it was pushed to.
fn nothing_left(scene: &Scene) -> bool {
    let fleet = &scene.fleet;
    fleet.encode.iter().chain(&fleet.prefill).chain(&fleet.decode).all(|engine| engine.encodings() == 0)
}

#[tokio::test]
async fn prefill_is_chosen_down_to_its_rank_before_anything_is_encoded() -> Result<()> {
    let fleet = Fleet::start_with(2, 2, |engine| engine.dp_size(2)).await?.with_encoders(2).await?;
    let scene = scene(fleet, "prefill").await?;
    for round in 0..6 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        scene.served(&chat(&[image(&a), video(&b), text(), image(&b)])).await?;
        scene.served(&streamed(chat(&[text(), image(&a)]))).await?;
    }
    assert!(nothing_left(&scene));
    assert_eq!(scene.count("retries", "").await?, 0.0);
    assert_eq!(scene.count("fallbacks", "").await?, 0.0);
    let ranks = scene.fleet.prefill.iter().flat_map(|prefill| prefill.requests());
    let ranks: Vec<_> =
        ranks.map(|request| request.header("x-data-parallel-rank").map(str::to_owned)).collect();
    assert!(ranks.iter().all(Option::is_some) && ranks.contains(&Some("1".into())), "{ranks:?}");
    let asked = scene.fleet.encode[0].requests().remove(0).json();
    assert!(asked["ec_transfer_params"]["consumer_zmq"].is_string(), "{asked}");
    Ok(())
}

#[tokio::test]
async fn who_does_both_is_pushed_to_and_gets_everything_anew_after_a_failure() -> Result<()> {
    let scene = scene(Fleet::of_consumers(2, 2).await?, "both").await?;
    let body = chat(&[image("a"), video("b"), text()]);
    scene.served(&body).await?;
    scene.served(&streamed(body.clone())).await?;
    assert!(nothing_left(&scene));
    scene.fleet.decode.iter().for_each(|decode| decode.fault(Fault::status(500)));
    scene.served(&body).await?;
    assert_eq!(scene.legs(), [10, 0, 5], "both have failed once");
    scene.fleet.decode[0].kill().await;
    for _ in 0..2 {
        scene.served(&body).await?;
    }
    Ok(())
}

#[tokio::test]
async fn without_prefill_decode_encodes_itself() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?.with_encoders(1).await?;
    let scene = scene(fleet, "prefill").await?;
    scene.fleet.prefill[0].fault(Fault::status(500));
    let mut body = chat(&[image("a"), text()]);
    scene.served(&body).await?;
    assert_eq!(super::parts_seen(&scene.fleet.decode[0])[0]["type"], "image_url");
    body["max_tokens"] = json!(3);
    scene.served(&body).await
}
