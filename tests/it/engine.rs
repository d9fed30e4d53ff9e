//! The simulated engine itself: handoffs that go right and wrong, faults, and the manners of its server.

mod abort;
mod answers;
mod faults;
mod handoff;
mod load_failure;
mod prefix_cache;
mod server;
mod wrong_text;

use anyhow::{Context, Result, ensure};
use edge_router_tests::client::{Answer, Client};
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
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
