//! NIXL's way back: the next turn's prefill reads what decode has generated (engine contract §4.4).

use anyhow::{Context, Result};
use edge_router_tests::client::Client;
use edge_router_tests::engine::{Connector, Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

use super::{COMPLETIONS, ask, hangs, hasty, paused, with};

fn both_ways(engine: EngineBuilder) -> EngineBuilder {
    hasty(Connector::NixlPull)(engine).bidirectional()
}

fn paused_both_ways(engine: EngineBuilder) -> EngineBuilder {
    paused(Connector::NixlPull)(engine).bidirectional()
}

fn tokens(count: u32) -> Vec<u32> {
    (300..300 + count).collect()
}

fn turn(prompt: &[u32], max_tokens: u32, params: &Value) -> Value {
    json!({ "prompt": prompt, "max_tokens": max_tokens, "return_token_ids": true, "kv_transfer_params": params })
}

/// A turn of prefill, and then of decode, whose answer it is. `readback` is what an earlier turn has left.
async fn served(fleet: &Fleet, prompt: &[u32], readback: &Value) -> Result<Value> {
    let offer = ask(&fleet.prefill[0], &turn(prompt, 1, readback)).await?.ok()?.json();
    Ok(ask(&fleet.decode[0], &turn(prompt, 12, &offer["kv_transfer_params"])).await?.ok()?.json())
}

async fn right(fleet: &Fleet, prompt: &[u32]) -> Result<Value> {
    let answer = ask(&fleet.baseline, &turn(prompt, 12, &Value::Null)).await?.ok()?;
    Ok(answer.json()["choices"][0]["text"].clone())
}

fn plain() -> Value {
    json!({ "do_remote_decode": true })
}

/// The first turn's prompt and answer, and two tokens more.
fn next_prompt(prompt: &[u32], answer: &Value) -> Vec<u32> {
    let said = answer["choices"][0]["token_ids"].as_array().into_iter().flatten();
    let said = said.filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok());
    prompt.iter().copied().chain(said).chain([700, 701]).collect()
}

#[tokio::test]
async fn the_next_turn_reads_prompt_and_answer() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, both_ways).await?;
    let prompt = tokens(100);
    let first = served(&fleet, &prompt, &plain()).await?;
    let readback = &first["kv_transfer_params"];
    assert_eq!(
        (&readback["do_remote_decode"], &readback["do_remote_prefill"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(readback["remote_num_tokens"], 111, "the last token's KV is not computed");
    assert!(readback["remote_blocks_expiry_time"].is_f64());
    assert_eq!((fleet.decode[0].pinned(), fleet.decode[0].pinned_readbacks()), (1, 1));
    // A prefill engine that has not seen the first turn.
    fleet.prefill[0].restart().await?;
    let prompt = next_prompt(&prompt, &first);
    let second = served(&fleet, &prompt, readback).await?;
    assert_eq!(second["choices"][0]["text"], right(&fleet, &prompt).await?);
    let counters = fleet.prefill[0].counters();
    assert_eq!((counters.remote_loads, counters.prompt_tokens_computed), (1, prompt.len() as u64 - 111));
    fleet.expect_readbacks(1);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_stream_says_it_at_its_end() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, both_ways).await?;
    fleet.expect_readbacks(1);
    let offer = ask(&fleet.prefill[0], &turn(&tokens(100), 1, &plain())).await?.ok()?.json();
    let body = with(&turn(&tokens(100), 3, &offer["kv_transfer_params"]), "stream", json!(true));
    let events = Client::new(&fleet.decode[0].address()).stream(COMPLETIONS, &body).await?.events().await?;
    let said: Vec<bool> =
        events.iter().map(|arrival| arrival.event.json()["kv_transfer_params"].is_object()).collect();
    assert_eq!(said, [false, false, true, false]);
    Ok(())
}

#[tokio::test]
async fn another_history_gives_another_text() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, both_ways).await?;
    let first = served(&fleet, &tokens(100), &plain()).await?;
    fleet.prefill[0].restart().await?;
    let mut edited = next_prompt(&tokens(100), &first);
    edited[0] = 900;
    let second = served(&fleet, &edited, &first["kv_transfer_params"]).await?;
    assert_ne!(second["choices"][0]["text"], right(&fleet, &edited).await?);
    fleet.expect_readbacks(1);
    Ok(())
}

#[tokio::test]
async fn a_few_tokens_are_rather_computed() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, both_ways).await?;
    let first = served(&fleet, &tokens(30), &plain()).await?;
    let prompt = next_prompt(&tokens(30), &first);
    let second = served(&fleet, &prompt, &first["kv_transfer_params"]).await?;
    assert_eq!(second["choices"][0]["text"], right(&fleet, &prompt).await?);
    assert_eq!(fleet.prefill[0].counters().remote_loads, 0);
    fleet.expect_readbacks(1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_too_long_fails_the_turn() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, paused_both_ways).await?;
    let began = tokio::time::Instant::now();
    let first = served(&fleet, &tokens(100), &plain()).await?;
    let prompt = next_prompt(&tokens(100), &first);
    fleet.prefill[0].restart().await?;
    eventually("decode frees it", || fleet.decode[0].pinned() == 0).await?;
    let seconds = began.elapsed().as_secs_f64() * 100.0;
    assert!((480.0..482.0).contains(&seconds), "{seconds}");
    let late = ask(&fleet.prefill[0], &turn(&prompt, 1, &first["kv_transfer_params"])).await?;
    assert_eq!(late.status, 500, "{}", late.text());
    fleet.expect_expired(1);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn prefill_that_can_not_read_back_is_parked_for_good() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, both_ways).await?;
    let one_way = hasty(Connector::NixlPull)(Engine::prefill()).lenient().start().await?;
    let first = served(&fleet, &tokens(100), &plain()).await?;
    let prompt = next_prompt(&tokens(100), &first);
    hangs(&one_way, "two", &turn(&prompt, 1, &first["kv_transfer_params"])).await?;
    assert!(one_way.leaked_blocks() > 0);
    fleet.expect_readbacks(1);
    Ok(())
}

#[tokio::test]
async fn decode_without_it_keeps_nothing() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty(Connector::NixlPull)).await?;
    let first = served(&fleet, &tokens(100), &plain()).await?;
    first.get("kv_transfer_params").filter(|params| params.is_null()).context("none")?;
    Ok(())
}
