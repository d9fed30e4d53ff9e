//! Instances that register as the EPD proxy has it.

use anyhow::Result;
use bytes::Bytes;
use edge_router_tests::client::{Answer, Client};
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};

use super::{Scene, chat, image, text};
use crate::failures::assert_error;

const KEY: &str = "a key of the launcher";

async fn register(client: &Client, role: &str, url: &str) -> Result<Answer> {
    client.post_json("/instances", &json!({ "role": role, "url": url, "dp_size": 1 })).await
}

async fn unregister(client: &Client, query: &str) -> Result<Answer> {
    client.request("DELETE", &format!("/instances{query}"), Some(("", Bytes::new()))).await?.whole().await
}

/// Waits until all instances have been met.
async fn met(router: &Router, count: usize) -> Result<()> {
    loop {
        let status = router.status().await?;
        let all = status["instances"].as_array().cloned().unwrap_or_default();
        if all.len() == count && all.iter().all(|i| i["state"] == "healthy") {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn instances_register_and_leave() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?.with_encoders(1).await?;
    let router = Router::builder().env("ADMIN_API_KEY", KEY).no_wait().start().await?;
    let launcher = router.client().header("X-API-Key", KEY);
    let body = chat(&[image("a"), text()]);
    assert_error(&router.stream(crate::load::CHAT, &body).await?.whole().await?, 503, "no_instance");
    let encoder = &fleet.encode[0];
    for (role, engine) in [("encode", encoder), ("prefill", &fleet.prefill[0]), ("decode", &fleet.decode[0])]
    {
        for new in [true, false] {
            let answer = register(&launcher, role, &format!("{}/", engine.url())).await?.ok()?;
            assert_eq!(answer.json(), json!({ "registered": new }));
        }
    }
    met(&router, 3).await?;
    let scene = Scene { fleet, router };
    scene.served(&body).await?;
    assert_eq!(scene.legs(), [1, 1, 1]);
    let listed = launcher.get("/instances").await?.ok()?.json();
    let roles: Vec<&Value> =
        listed["instances"].as_array().into_iter().flatten().map(|i| &i["role"]).collect();
    assert_eq!(roles, ["encode", "prefill", "decode"]);

    let url = scene.fleet.encode[0].url().replace(':', "%3A").replace('/', "%2F");
    for removed in [true, false] {
        let answer = unregister(&launcher, &format!("?url={url}")).await?.ok()?;
        assert_eq!(answer.json(), json!({ "removed": removed }));
    }
    scene.served(&body).await?;
    assert_eq!(scene.legs(), [1, 2, 2], "nobody encodes apart any more");
    unregister(&launcher, &format!("?url={}", scene.fleet.decode[0].url())).await?.ok()?;
    assert_error(&scene.answer(&body).await?, 503, "no_instance");
    Ok(())
}

#[tokio::test]
async fn what_makes_no_fleet_is_refused() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let both = Engine::both().start().await?;
    let router = Router::builder().env("ADMIN_API_KEY", KEY).no_wait().start().await?;
    let launcher = router.client().header("x-api-key", KEY);
    assert_error(&register(&router.client(), "encode", &both.url()).await?, 403, "forbidden");
    assert_error(&unregister(&router.client(), "?url=http://a:1").await?, 403, "forbidden");

    register(&launcher, "prefill", &fleet.prefill[0].url()).await?.ok()?;
    let mixed = register(&launcher, "prefill_decode", &both.url()).await?;
    assert_error(&mixed, 409, "conflict");
    assert!(mixed.text().contains(&fleet.prefill[0].address()), "{}", mixed.text());
    assert_error(&register(&launcher, "decode", &fleet.prefill[0].url()).await?, 409, "conflict");
    unregister(&launcher, &format!("?url={}", fleet.prefill[0].url())).await?.ok()?;
    register(&launcher, "prefill_decode", &both.url()).await?.ok()?;
    assert_error(&register(&launcher, "decode", &fleet.decode[0].url()).await?, 409, "conflict");

    for wrong in [
        json!({ "url": "http://a:1" }),
        json!({ "role": "render", "url": "http://a:1" }),
        json!({ "role": "encode" }),
        json!({ "role": "encode", "url": "a" }),
        json!({ "role": "encode", "url": "http://a:1", "dp_size": 0 }),
        json!({ "role": "encode", "url": "http://a:1", "ec_zmq_addrs": ["tcp://a:2"] }),
    ] {
        assert_error(&launcher.post_json("/instances", &wrong).await?, 400, "invalid_request");
    }
    assert_error(&unregister(&launcher, "").await?, 400, "invalid_request");
    Ok(())
}
