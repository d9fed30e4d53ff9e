//! What an engine still knows from earlier prompts.

use anyhow::Result;
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use serde_json::json;

use super::{ask, completion, handed, prefill, right, story, text};

#[tokio::test]
async fn a_repeated_prompt_is_cached_in_whole_blocks() -> Result<()> {
    let engine = Engine::both().prompt_tokens_details().start().await?;
    let cached = async |body| -> Result<u64> {
        let usage = ask(&engine, &body).await?.ok()?.json()["usage"].take();
        Ok(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default())
    };
    assert_eq!(cached(completion(&story(1))).await?, 0);
    let again = cached(completion(&story(1))).await?;
    assert!(again > 0 && again.is_multiple_of(16), "{again}");
    let salted = json!({ "prompt": story(1), "max_tokens": 1, "cache_salt": "tenant" });
    assert_eq!(cached(salted).await?, 0, "another tenant's blocks are not found");
    Ok(())
}

#[tokio::test]
async fn decode_reports_what_prefill_had_cached() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| engine.prompt_tokens_details()).await?;
    for expect_cached in [false, true] {
        let params = prefill(&fleet.prefill[0], &story(1)).await?;
        let usage = ask(&fleet.decode[0], &handed(&story(1), &params)).await?.ok()?.json()["usage"].take();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], params["remote_prefill_cached_tokens"]);
        assert_eq!(params["remote_prefill_cached_tokens"].as_u64() > Some(0), expect_cached);
    }
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn only_the_missing_end_is_transferred() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let longer = format!("{} And so on.", story(1));
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    text(&fleet.decode[0], &handed(&story(1), &params)).await?;
    let before = fleet.decode[0].counters();
    let params = prefill(&fleet.prefill[0], &longer).await?;
    assert_eq!(text(&fleet.decode[0], &handed(&longer, &params)).await?, right(&fleet, &longer).await?);
    let after = fleet.decode[0].counters();
    assert!(after.prompt_tokens_cached > before.prompt_tokens_cached);
    assert!(
        after.prompt_tokens_transferred - before.prompt_tokens_transferred < before.prompt_tokens_transferred
    );
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_prompt_that_decode_holds_is_only_let_go() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    // Two blocks and one token: all but the last token can be cached.
    let prompt = json!(vec![300; 33]);
    let body = |params| json!({ "prompt": prompt, "max_tokens": 1, "kv_transfer_params": params });
    for _ in 0..2 {
        let params = ask(&fleet.prefill[0], &body(json!({ "do_remote_decode": true }))).await?.ok()?;
        ask(&fleet.decode[0], &body(params.json()["kv_transfer_params"].take())).await?.ok()?;
    }
    assert_eq!(fleet.decode[0].counters().prompt_tokens_transferred, 33 + 1);
    assert_eq!(fleet.prefill[0].counters().completed, 2);
    fleet.assert_quiescent().await;
    Ok(())
}
