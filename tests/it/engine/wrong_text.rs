//! Handoffs that go wrong without an error: 200, and another text.

use std::collections::BTreeSet;

use anyhow::Result;
use edge_router_tests::engine::{Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

use super::{ask, handed, prefill, right, story, text};

/// Leases end after a third of a second.
fn hasty(engine: EngineBuilder) -> EngineBuilder {
    engine.time_scale(0.01)
}

#[tokio::test]
async fn expired_blocks_that_were_reused() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty).await?;
    let stale = prefill(&fleet.prefill[0], &story(1)).await?;
    eventually("the lease ends", || fleet.prefill[0].pinned() == 0).await?;
    let fresh = prefill(&fleet.prefill[0], &story(2)).await?;
    assert_eq!(blocks(&stale), blocks(&fresh), "the next prefill takes the expired blocks");
    let said = text(&fleet.decode[0], &handed(&story(1), &stale)).await?;
    assert_ne!(said, right(&fleet, &story(1)).await?);
    fleet.expect_expired(2);
    fleet.expect_late_reads(1);
    Ok(())
}

fn blocks(params: &Value) -> BTreeSet<u64> {
    params["remote_block_ids"][0].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

#[tokio::test]
async fn params_that_are_used_twice() -> Result<()> {
    let mut fleet = Fleet::start(1, 2).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    let expected = right(&fleet, &story(1)).await?;
    assert_eq!(text(&fleet.decode[0], &handed(&story(1), &params)).await?, expected);
    let other = prefill(&fleet.prefill[0], &story(2)).await?;
    assert_ne!(text(&fleet.decode[1], &handed(&story(1), &params)).await?, expected);
    assert_eq!(fleet.prefill[0].counters().notifications_after_expiry, 1);
    text(&fleet.decode[0], &handed(&story(2), &other)).await?;
    fleet.expect_late_reads(1);
    Ok(())
}

#[tokio::test]
async fn blocks_of_another_prompt() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    let said = text(&fleet.decode[0], &handed(&story(2), &params)).await?;
    assert_ne!(said, right(&fleet, &story(2)).await?);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_shorter_prompt_than_was_computed() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let params = prefill(&fleet.prefill[0], &format!("{} And then {}", story(1), story(2))).await?;
    let said = text(&fleet.decode[0], &handed(&story(1), &params)).await?;
    assert_ne!(said, right(&fleet, &story(1)).await?);
    Ok(())
}

#[tokio::test]
async fn two_prompts_and_one_handoff() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    let both = json!({ "prompt": [story(1), story(2)], "max_tokens": 12, "kv_transfer_params": params });
    let transcript = ask(&fleet.decode[0], &both).await?.ok()?.transcript();
    assert_eq!(transcript.texts()[0], right(&fleet, &story(1)).await?);
    assert_ne!(transcript.texts()[1], right(&fleet, &story(2)).await?);
    fleet.expect_late_reads(1);
    Ok(())
}

#[tokio::test]
async fn copies_read_one_handoff_twice() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    let body = json!({ "prompt": story(1), "n": 2, "max_tokens": 12, "kv_transfer_params": params });
    assert_eq!(ask(&fleet.decode[0], &body).await?.ok()?.transcript().choices.len(), 2);
    assert_eq!(fleet.prefill[0].counters().notifications_after_expiry, 1, "only the first was in time");
    fleet.expect_late_reads(1);
    Ok(())
}

#[tokio::test]
async fn the_text_follows_from_prompt_seed_and_copy() -> Result<()> {
    let engine = Engine::both().start().await?;
    let body = |seed: u64, n: usize| json!({ "prompt": story(1), "max_tokens": 12, "seed": seed, "n": n });
    let first = ask(&engine, &body(1, 2)).await?.transcript();
    assert_eq!(first.choices, ask(&engine, &body(1, 2)).await?.transcript().choices);
    assert_ne!(first.texts()[0], first.texts()[1]);
    assert_ne!(first.texts()[0], ask(&engine, &body(2, 1)).await?.transcript().text());
    Ok(())
}
