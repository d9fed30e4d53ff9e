//! The simulated engine itself: handoffs that go right and wrong, faults, and the manners of its server.

mod abort;
mod answers;
mod bidirectional;
mod content;
mod encode;
mod faults;
mod handoff;
mod load_failure;
mod mooncake;
mod moriio_read;
mod moriio_write;
mod prefix_cache;
mod push;
mod registration;
mod server;
mod wrong_text;

use anyhow::{Context, Result, ensure};
use edge_router_tests::client::{Answer, Client};
use edge_router_tests::engine::{Connector, Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A prompt of a few blocks, different for each `number`, always of the same length.
fn story(number: usize) -> String {
    format!(
        "{number:04} times the router asked the engine for a story, and each time it got another one to tell. The end."
    )
}

/// What the tests ask decode for.
fn completion(prompt: &str) -> Value {
    json!({ "prompt": prompt, "max_tokens": 12 })
}

/// The same, with a prompt's KV cache elsewhere.
fn handed(prompt: &str, params: &Value) -> Value {
    json!({ "prompt": prompt, "max_tokens": 12, "kv_transfer_params": params })
}

/// What a router asks prefill for.
fn cut_down(prompt: &str) -> Value {
    json!({ "prompt": prompt, "max_tokens": 1, "kv_transfer_params": { "do_remote_decode": true } })
}

async fn ask(engine: &Engine, body: &Value) -> Result<Answer> {
    Client::new(&engine.address()).post_json(COMPLETIONS, body).await
}

async fn text(engine: &Engine, body: &Value) -> Result<String> {
    Ok(ask(engine, body).await?.ok()?.transcript().text().to_owned())
}

/// Lets prefill compute a prompt, and returns where its KV cache lies.
async fn prefill(engine: &Engine, prompt: &str) -> Result<Value> {
    let params = ask(engine, &cut_down(prompt)).await?.ok()?.json()["kv_transfer_params"].take();
    ensure!(params["do_remote_prefill"] == true, "no handoff: {params}");
    Ok(params)
}

/// What one engine alone says.
async fn right(fleet: &Fleet, prompt: &str) -> Result<String> {
    text(&fleet.baseline, &completion(prompt)).await.context("baseline")
}

fn without(params: &Value, key: &str) -> Value {
    let mut params = params.clone();
    params.as_object_mut().and_then(|params| params.remove(key));
    params
}

fn with(params: &Value, key: &str, value: Value) -> Value {
    let mut params = params.clone();
    params[key] = value;
    params
}

/// Engines with this connector, whose timers run a hundred times as fast.
fn hasty(connector: Connector) -> impl Fn(EngineBuilder) -> EngineBuilder {
    move |engine| engine.connector(connector.clone()).time_scale(0.01)
}

/// The same, on the test's own clock.
fn paused(connector: Connector) -> impl Fn(EngineBuilder) -> EngineBuilder {
    move |engine| hasty(connector.clone())(engine).on_this_runtime()
}

/// What a router asks prefill for, with these params and no end of the text.
fn prefill_leg(prompt: &str, params: &Value) -> Value {
    json!({ "prompt": prompt, "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": params })
}

/// As [`ask`], with an `X-Request-Id`.
async fn ask_as(engine: &Engine, id: &str, body: &Value) -> Result<Answer> {
    Client::new(&engine.address()).header("x-request-id", id).post_json(COMPLETIONS, body).await
}

/// Asks, waits until the engine waits for a peer that does not come, and leaves.
async fn hangs(engine: &Engine, id: &str, body: &Value) -> Result<()> {
    let (hanging, aborted) = (engine.hanging(), engine.counters().aborted);
    tokio::select! {
        answer = ask_as(engine, id, body) => anyhow::bail!("answered: {}", answer?.text()),
        hangs = eventually("it hangs", || engine.hanging() > hanging) => hangs?,
    }
    eventually("the engine sees the abort", || engine.counters().aborted > aborted).await
}

/// Asks for what no engine survives, and starts it again.
async fn dies(engine: &Engine, body: &Value) -> Result<()> {
    let deaths = engine.deaths();
    ensure!(ask(engine, body).await?.status == 500, "it lives: {body}");
    ensure!(engine.deaths() == deaths + 1, "it lives: {body}");
    Ok(engine.restart().await?)
}
