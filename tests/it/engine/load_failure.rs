//! Handoffs that fail: with an error, by the engine's death, or never.

use std::time::Duration;

use anyhow::Result;
use edge_router_tests::client::{Client, PATIENCE};
use edge_router_tests::engine::{Engine, EngineBuilder, LoadFailurePolicy};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::sse::{Event, EventBuffer};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{CHAT, COMPLETIONS, ask, completion, handed, prefill, right, story, text, with, without};

fn hasty(engine: EngineBuilder) -> EngineBuilder {
    engine.time_scale(0.01)
}

/// A handshake that is not given up at once would outlast any test.
fn slow(engine: EngineBuilder) -> EngineBuilder {
    engine.time_scale(100.0)
}

/// Decode fails the request with these params, and lives on.
async fn fails(fleet: &Fleet, params: &Value) -> Result<()> {
    let answer = ask(&fleet.decode[0], &handed(&story(1), params)).await?;
    assert_eq!(
        (answer.status, answer.json()["error"]["message"].as_str()),
        (500, Some("Internal server error"))
    );
    assert_eq!(text(&fleet.decode[0], &completion(&story(1))).await?, right(fleet, &story(1)).await?);
    Ok(())
}

/// Decode answers with 500 and is then gone, until it is started again.
async fn dies(fleet: &Fleet, body: &Value) -> Result<()> {
    let decode = &fleet.decode[0];
    let answer = ask(decode, body).await?;
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("EngineCore encountered an issue"));
    let client = Client::new(&decode.address());
    timeout(PATIENCE, async {
        while client.get("/health").await.is_ok_and(|health| health.status == 503) {}
    })
    .await?;
    assert!(client.get("/health").await.is_err(), "the port refuses");
    assert!(decode.died());
    decode.restart().await?;
    assert_eq!(client.get("/health").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn another_engine_at_that_address() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    fleet.expect_expired(1);
    fails(&fleet, &with(&params, "remote_engine_id", json!("another"))).await?;
    fails(&fleet, &with(&params, "remote_engine_id", Value::Null)).await
}

#[tokio::test]
async fn a_peer_that_is_dead_or_was_restarted() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    fleet.prefill[0].kill().await;
    fails(&fleet, &params).await?;
    fleet.prefill[0].restart().await?;
    fails(&fleet, &params).await?;
    let params = prefill(&fleet.prefill[0], &story(2)).await?;
    assert_eq!(text(&fleet.decode[0], &handed(&story(2), &params)).await?, right(&fleet, &story(2)).await?);
    Ok(())
}

#[tokio::test]
async fn a_known_peer_fails_at_once() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, slow).await?;
    let params = prefill(&fleet.prefill[0], &story(2)).await?;
    text(&fleet.decode[0], &handed(&story(2), &params)).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    fleet.prefill[0].kill().await;
    fails(&fleet, &params).await
}

#[tokio::test]
async fn blocks_that_do_not_exist_fail_at_once() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, slow).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    let beyond: Vec<u64> = (1_000_000..1_000_020).collect();
    fails(&fleet, &with(&params, "remote_block_ids", json!([beyond]))).await?;
    fleet.expect_pinned(1);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn engines_of_different_builds() -> Result<()> {
    let fleet = Fleet::start_with(0, 1, hasty).await?;
    let other = Engine::prefill().build("another").time_scale(0.01).start().await?;
    fails(&fleet, &prefill(&other, &story(1)).await?).await
}

#[tokio::test]
async fn decode_may_recompute_instead() -> Result<()> {
    let recompute = |engine: EngineBuilder| hasty(engine).on_load_failure(LoadFailurePolicy::Recompute);
    let fleet = Fleet::start_with(1, 1, recompute).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    fleet.prefill[0].kill().await;
    assert_eq!(text(&fleet.decode[0], &handed(&story(1), &params)).await?, right(&fleet, &story(1)).await?);
    assert_eq!((fleet.decode[0].counters().failed_loads, fleet.decode[0].counters().local_prefills), (1, 1));
    Ok(())
}

#[tokio::test]
async fn streams_fail_as_recorded() -> Result<()> {
    let chat = include_str!("../../fixtures/captures/dead-remote-stream-chat.sse");
    let completions = include_str!("../../fixtures/captures/dead-remote-stream-completion.sse");
    let fleet = Fleet::start_with(1, 1, hasty).await?;
    // Enough blocks for the chat too, whose template makes it longer.
    let params = prefill(&fleet.prefill[0], &format!("{} {}", story(1), story(2))).await?;
    fleet.prefill[0].kill().await;
    for (path, recorded) in [(CHAT, chat), (COMPLETIONS, completions)] {
        let body = json!({
            "prompt": story(1), "messages": [{ "role": "user", "content": story(1) }], "max_tokens": 3,
            "stream": true, "kv_transfer_params": params,
        });
        let stream = Client::new(&fleet.decode[0].address()).stream(path, &body).await?;
        assert_eq!(stream.status, 200);
        let found: Vec<Event> = stream.events().await?.into_iter().map(|arrival| arrival.event).collect();
        let recorded = EventBuffer::default().push(recorded.as_bytes());
        assert_eq!(found.len(), recorded.len());
        // All but the role event, whose id and time differ, are the recorded ones to the letter.
        let same = if path == CHAT { 1 } else { 0 };
        assert_eq!(found[same..], recorded[same..]);
    }
    Ok(())
}

#[tokio::test]
async fn params_without_blocks_kill_decode() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    fleet.expect_deaths(4);
    fleet.expect_expired(1);
    dies(&fleet, &handed(&story(1), &json!({ "do_remote_prefill": true }))).await?;
    dies(&fleet, &handed(&story(1), &without(&params, "remote_block_ids"))).await?;
    dies(&fleet, &handed(&story(1), &with(&params, "remote_block_ids", Value::Null))).await?;
    dies(&fleet, &handed(&story(1), &with(&params, "remote_block_ids", json!([])))).await
}

#[tokio::test]
async fn a_longer_prompt_than_was_computed_kills_decode() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    fleet.expect_deaths(1);
    fleet.expect_expired(1);
    dies(&fleet, &handed(&format!("{} And then {}", story(1), story(2)), &params)).await
}

#[tokio::test]
async fn a_dying_engine_takes_its_streams_along() -> Result<()> {
    let mut fleet =
        Fleet::start_with(0, 1, |engine| hasty(engine).token_delay(Duration::from_millis(2))).await?;
    fleet.expect_deaths(1);
    let client = Client::new(&fleet.decode[0].address());
    let endless = json!({ "prompt": "on and on", "max_tokens": 30_000, "stream": true });
    let mut stream = client.stream(COMPLETIONS, &endless).await?;
    stream.next_event().await?;
    ask(&fleet.decode[0], &handed(&story(1), &json!({ "do_remote_prefill": true }))).await?;
    let ended = loop {
        match stream.next_event().await {
            Ok(Some(arrival)) if arrival.event.json().get("error").is_some() => break true,
            Ok(Some(_)) => {}
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(ended, "neither an error event nor a broken connection");
    Ok(())
}

#[tokio::test]
async fn params_without_names_hang_and_leak() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let (decode, params) = (&fleet.decode[0], prefill(&fleet.prefill[0], &story(1)).await?);
    for (hung, key) in
        ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"].iter().enumerate()
    {
        let leaked = decode.leaked_blocks();
        let body = handed(&story(1), &without(&params, key));
        let answer = ask(decode, &body);
        tokio::select! {
            _ = answer => panic!("answered without {key}"),
            parked = eventually("the load is parked", || decode.leaked_blocks() > leaked) => parked?,
        }
        eventually("the engine sees the abort", || decode.counters().aborted == hung as u64 + 1).await?;
        assert_eq!(decode.free_blocks() + decode.leaked_blocks(), decode.total_blocks());
    }
    text(decode, &handed(&story(1), &params)).await?;
    let leaked = decode.leaked_blocks();
    fleet.expect_leaked(leaked);
    Ok(())
}
