//! The policies at work: where requests go, seen by the engines themselves.

mod sessions;

use anyhow::{Context, Result};
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Duration;

use crate::load::{CHAT, COMPLETIONS};

fn ask(messages: &[Value]) -> Value {
    json!({ "model": "sim", "messages": messages, "max_tokens": 4 })
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// How many requests each engine has got.
fn shares(engines: &[Engine]) -> Vec<usize> {
    engines.iter().map(|engine| engine.requests().len()).collect()
}

/// Why prefill went where it went, for the latest request in the log.
fn latest_reason(router: &Router) -> Result<String> {
    let lines = router.log();
    let line = lines.iter().rev().find(|line| line.contains("prefill=")).context("no access log")?;
    let (_, after) = line.split_once("prefill=").context("no prefill")?;
    let (reason, _) = after.split_once("decode=").context("no decode")?;
    Ok(reason.to_owned())
}

#[tokio::test]
async fn a_growing_conversation_stays_where_its_cache_is() -> Result<()> {
    let fleet = Fleet::start(3, 2).await?;
    let router = fleet.router().patient().policy("cache_aware.wasm").start().await?;
    let mut messages = vec![user(&"Tell me of the sea, the wind and the stars. ".repeat(10))];
    for turn in 0..6 {
        let said = router.post_json(CHAT, &ask(&messages)).await?.ok()?.transcript();
        assert_eq!(said.text(), fleet.baseline(CHAT, &ask(&messages)).await?.text());
        messages.push(json!({ "role": "assistant", "content": said.text() }));
        messages.push(user(&format!("Go on with part {turn}, {}", "in some detail, ".repeat(20))));
    }
    let homes: Vec<_> = fleet.prefill.iter().filter(|prefill| !prefill.requests().is_empty()).collect();
    assert_eq!(homes.len(), 1, "{:?}", shares(&fleet.prefill));
    let counted = homes[0].counters();
    assert_eq!(homes[0].requests().len(), 6);
    // Each turn but the first finds the turns before it.
    assert!(counted.prompt_tokens_cached > counted.prompt_tokens_computed, "{counted:?}");
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn distinct_prompts_are_spread() -> Result<()> {
    let fleet = Fleet::start(3, 3).await?;
    let router = fleet.router().patient().policy("cache_aware.wasm").start().await?;
    for number in 0..36 {
        let story = format!("{number} is the number of this story. {}", "It begins so. ".repeat(30));
        router.post_json(CHAT, &ask(&[user(&story)])).await?.ok()?;
    }
    for shares in [shares(&fleet.prefill), shares(&fleet.decode)] {
        assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_hot_prefix_does_not_drown_its_instance() -> Result<()> {
    let fleet = Fleet::start(2, 2).await?;
    let config = r#"cache_aware={"balance_tokens_abs":4000}"#;
    let router = fleet
        .router()
        .patient()
        .policy("cache_aware.wasm")
        .arg("--policy-config")
        .arg(config)
        .start()
        .await?;
    // About a thousand tokens that all have in common.
    let prefix = "You are a helpful assistant of the sea. ".repeat(100);
    router.post_json(CHAT, &ask(&[user(&prefix)])).await?.ok()?;
    let before = shares(&fleet.prefill);
    for prefill in &fleet.prefill {
        prefill.fault(Fault::delay(Duration::from_millis(400)).on_prefill().times(15));
    }
    let mut requests = JoinSet::new();
    for number in 0..30 {
        let (client, body) = (router.client(), ask(&[user(&format!("{prefix} {number}"))]));
        requests.spawn(async move { client.post_json(CHAT, &body).await?.ok() });
    }
    while let Some(answer) = requests.join_next().await {
        answer??;
    }
    let shares: Vec<_> = shares(&fleet.prefill).iter().zip(before).map(|(now, then)| now - then).collect();
    assert_eq!(shares.iter().sum::<usize>(), 30);
    assert!(shares.iter().all(|share| *share >= 5), "{shares:?}");
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn images_are_told_apart_and_found_again() -> Result<()> {
    let fleet = Fleet::start(2, 1).await?;
    let router = fleet.router().patient().policy("cache_aware.wasm").arg("--access-log").start().await?;
    let look = |fill: &str, more: &[Value]| {
        let url = format!("data:image/png;base64,{}", fill.repeat(200_000));
        let image = json!({ "type": "image_url", "image_url": { "url": url } });
        let question = json!({ "type": "text", "text": "what is to be seen here?" });
        let mut messages = vec![json!({ "role": "user", "content": [image, question] })];
        messages.extend_from_slice(more);
        ask(&messages)
    };
    let reason = async |body: &Value, lines: usize| -> Result<String> {
        router.post_json(CHAT, body).await?.ok()?;
        router.wait_for_log_times("prefill=", lines).await?;
        latest_reason(&router)
    };
    assert!(reason(&look("AAAA", &[]), 1).await?.contains("least queued"));
    // The same picture again, further on in the conversation.
    let more = [json!({ "role": "assistant", "content": "a boat" }), user("and behind it?")];
    let again = reason(&look("AAAA", &more), 2).await?;
    assert!(again.contains("cached 5"), "{again}");
    // Another of the same size.
    let other = reason(&look("BBBB", &[]), 3).await?;
    assert!(other.contains("least queued"), "{other}");
    Ok(())
}

#[tokio::test]
async fn round_robin_is_even() -> Result<()> {
    for policy in [None, Some("round_robin.wasm")] {
        let fleet = Fleet::start(3, 2).await?;
        let builder = fleet.router().patient();
        let router = policy.into_iter().fold(builder, |router, name| router.policy(name)).start().await?;
        for turn in 0..12 {
            router.post_json(CHAT, &ask(&[user(&format!("turn {turn}"))])).await?.ok()?;
        }
        assert_eq!((shares(&fleet.prefill), shares(&fleet.decode)), (vec![4; 3], vec![6; 2]));
    }
    Ok(())
}

#[tokio::test]
async fn least_loaded_avoids_a_prefill_instance_with_a_long_queue() -> Result<()> {
    let fleet = Fleet::start(2, 1).await?;
    let router = fleet.router().patient().policy("least_loaded.wasm").start().await?;
    for prefill in &fleet.prefill {
        prefill.fault(Fault::hang().on_prefill());
    }
    let (client, long) = (router.client(), ask(&[user(&"a long story ".repeat(500))]));
    let held = tokio::spawn(async move { client.post_json(CHAT, &long).await });
    let taken = || fleet.prefill.iter().position(|prefill| !prefill.requests().is_empty());
    edge_router_tests::patience::eventually("one is at it", || taken().is_some()).await?;
    let busy = taken().context("none")?;
    fleet.prefill[1 - busy].clear_faults();
    for turn in 0..8 {
        router.post_json(CHAT, &ask(&[user(&format!("turn {turn}"))])).await?.ok()?;
    }
    assert_eq!((fleet.prefill[busy].requests().len(), fleet.prefill[1 - busy].requests().len()), (1, 8));
    held.abort();
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn an_engine_that_was_away_is_not_expected_to_have_a_cache() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet
        .router()
        .policy("cache_aware.wasm")
        .patient()
        .arg("--probe-interval-ms")
        .arg("50")
        .start()
        .await?;
    let known = async || anyhow::Ok(router.status().await?["prefix_index_blocks"].as_u64().unwrap_or(0));
    let body = json!({ "model": "sim", "prompt": "the same beginning ".repeat(100), "max_tokens": 2 });
    router.post_json(COMPLETIONS, &body).await?.ok()?;
    let both = known().await?;
    assert!(both > 0);
    fleet.prefill[0].kill().await;
    router.wait_for_log("instance can't be used").await?;
    let tokenized = router
        .post_json("/tokenize", &json!({ "model": "sim", "prompt": "other words ".repeat(100) }))
        .await?;
    assert_eq!(tokenized.status, 200);
    // What decode holds of the prompt is still known, block for block; of what was only tokenised nothing is held.
    assert_eq!(known().await?, both);
    fleet.decode[0].kill().await;
    router.wait_for_log_times("instance can't be used", 2).await?;
    assert_eq!(known().await?, 0);
    Ok(())
}
