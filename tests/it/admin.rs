//! The fleet as its operators change it: instances join, leave, rest, and turn out to be others than they should be.

mod membership;
mod settings;

use anyhow::{Context, Result};
use edge_router_tests::client::{Answer, Client};
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use crate::failures::assert_error;
use crate::load::{CHAT, all_right, chat};

const KEY: &str = "a key of the operators";

/// A client that may change the fleet.
fn operator(router: &Router) -> Client {
    router.client().header("x-api-key", KEY)
}

async fn add(router: &Router, role: &str, address: &str) -> Result<Answer> {
    operator(router).post_json("/instances/add", &json!({ "type": role, "instance": address })).await
}

/// Waits until `/status` says this of an instance.
async fn becomes(router: &Router, address: &str, state: &str) -> Result<Value> {
    for _ in 0..3000 {
        let status = router.status().await?;
        let all = status["instances"].as_array().context("no instances")?;
        let found = all.iter().find(|i| i["address"] == address && i["state"] == state);
        if let Some(instance) = found {
            return Ok(instance.clone());
        }
        sleep(Duration::from_millis(10)).await;
    }
    anyhow::bail!("{address} is never {state}: {}", router.status().await?)
}

#[tokio::test]
async fn a_router_without_instances_waits_for_them() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = Router::builder().env("ADMIN_API_KEY", KEY).no_wait().start().await?;
    router.wait_for_log("waiting for POST /instances/add").await?;
    let ready = router.get("/readyz").await?;
    assert_eq!((ready.status, &*ready.text()), (503, "waiting for instances: none is known yet\n"));
    let refused = router.post_json(CHAT, &chat(1)).await?;
    assert_error(&refused, 503, "no_instance");
    assert_eq!(refused.header("retry-after"), Some("1"));

    for (role, engine) in [("prefill", &fleet.prefill[0]), ("decode", &fleet.decode[0])] {
        let added = add(&router, role, &engine.address()).await?.ok()?;
        let said = format!("Added {} to {role} instances.", engine.address());
        assert!(added.text().contains(&said), "{}", added.text());
        becomes(&router, &engine.address(), "healthy").await?;
    }
    assert_eq!(router.get("/readyz").await?.status, 200);
    all_right(&fleet, &router, 4, 2).await?;
    assert_eq!(fleet.decode[0].counters().remote_loads, 4);

    // As the tools of the demo proxy read it.
    let status = router.status().await?;
    assert_eq!((&status["prefill_node_count"], &status["decode_node_count"]), (&json!(1), &json!(1)));
    assert_eq!(status["prefill_nodes"], json!([fleet.prefill[0].address()]));
    assert_eq!(status["decode_nodes"], json!([fleet.decode[0].address()]));
    Ok(())
}

#[tokio::test]
async fn without_the_key_nothing_can_be_changed() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().env("ADMIN_API_KEY", KEY).start().await?;
    let keyless = fleet.router().start().await?;
    let body = json!({ "type": "decode", "instance": "127.0.0.1:9" });
    for path in ["/instances/add", "/instances/remove", "/instances/drain", "/instances/resume"] {
        for client in [
            router.client(),
            router.client().header("x-api-key", ""),
            router.client().header("x-api-key", "wrong"),
            router.client().header("authorization", &format!("Bearer {KEY}")),
            // Without a key there is none that is right.
            keyless.client().header("x-api-key", ""),
            keyless.client().header("x-api-key", KEY),
        ] {
            assert_error(&client.post_json(path, &body).await?, 403, "forbidden");
        }
    }
    assert_error(&router.get("/instances").await?, 403, "forbidden");
    let listed = operator(&router).get("/instances").await?.ok()?;
    assert_eq!(listed.json()["instances"].as_array().map(Vec::len), Some(2));
    assert!(!router.log().concat().contains(KEY));
    Ok(())
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_right_form() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().env("ADMIN_API_KEY", KEY).start().await?;
    let before = router.status().await?["instances"].as_array().map(Vec::len);
    for address in ["", "engine", "127.0.0.1", ":80", "127.0.0.1:0", "127.0.0.1:99999", "::1:80", "a b:80"] {
        let answer = add(&router, "decode", address).await?;
        assert_error(&answer, 400, "invalid_request");
        assert!(answer.text().contains("host:port"), "{}", answer.text());
    }
    let twice = add(&router, "decode", &fleet.decode[0].address()).await?;
    assert_error(&twice, 400, "invalid_request");
    assert!(twice.text().contains("already known"), "{}", twice.text());
    let unknown = json!({ "instance": "127.0.0.1:9" });
    for path in ["/instances/remove", "/instances/drain", "/instances/resume"] {
        assert_error(&operator(&router).post_json(path, &unknown).await?, 404, "unknown");
    }
    for body in [
        json!({ "instance": "127.0.0.1:9" }),
        json!({ "type": "other", "instance": "127.0.0.1:9" }),
        json!({ "type": "decode" }),
        json!({ "type": "decode", "instance": "127.0.0.1:9", "more": 1 }),
        json!([1]),
    ] {
        let answer = operator(&router).post_json("/instances/add", &body).await?;
        assert_error(&answer, 400, "invalid_request");
    }
    assert_eq!(router.status().await?["instances"].as_array().map(Vec::len), before);
    Ok(())
}

#[tokio::test]
async fn an_instance_with_another_model_gets_nothing() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let other = Engine::decode().model("another").start().await?;
    let silent = Engine::decode().model("another").start().await?;
    silent.fault(Fault::close_before_headers().on_path("/v1/models").always());
    let late = Engine::decode().start().await?;
    late.fault(Fault::status(503).on_path("/v1/models").times(2));
    let router = fleet
        .router()
        .decode(&other)
        .decode(&silent)
        .decode(&late)
        .arg("--model")
        .arg("sim")
        .no_wait()
        .start()
        .await?;
    for engine in [&fleet.prefill[0], &fleet.decode[0]] {
        becomes(&router, &engine.address(), "healthy").await?;
    }
    let instance = becomes(&router, &other.address(), "wrong-model").await?;
    assert_eq!(instance["serves_instead"], json!(["another"]));
    let said = router.wait_for_log("does not serve the model").await?;
    assert!(said.contains("sim") && said.contains("another"), "{said}");
    // One that does not say what it serves is no better; one that says so later is used then.
    becomes(&router, &late.address(), "healthy").await?;
    let asked = silent.seen().len();
    edge_router_tests::patience::eventually("it is asked again", || silent.seen().len() > asked + 4).await?;
    becomes(&router, &silent.address(), "starting").await?;
    all_right(&fleet, &router, 8, 2).await?;
    assert!(other.requests().is_empty() && silent.requests().is_empty());
    assert!(!late.requests().is_empty());
    Ok(())
}
