//! Chats: an engine tells their tokens, and what a model wrote may be split otherwise when it comes back as text.

use anyhow::{Context, Result};
use edge_router_tests::client::Client;
use edge_router_tests::engine::Fault;
use edge_router_tests::fleet::Fleet;
use serde_json::{Value, json};

use super::{ANSWERED, Scene, ids};
use crate::load::CHAT;

/// Two turns of a conversation.
struct Chat {
    first: Value,
    second: Value,
}

impl Chat {
    /// One whose second turn begins with the first one's tokens, or one that only begins with its text.
    async fn find(fleet: &Fleet, same_tokens: bool) -> Result<Self> {
        for seed in 0..200 {
            let chat = Self::new(fleet, seed).await?;
            if chat.goes_on_from_tokens(fleet).await? == same_tokens {
                return Ok(chat);
            }
        }
        anyhow::bail!("no seed gives such a chat")
    }

    async fn new(fleet: &Fleet, seed: u32) -> Result<Self> {
        let asked = json!({ "role": "user", "content": "tell me of the wind and of the sea, ".repeat(6) });
        let turn = |messages: &[&Value]| json!({ "model": "sim", "messages": messages, "max_tokens": ANSWERED, "seed": seed });
        let first = turn(&[&asked]);
        let said = fleet.baseline(CHAT, &first).await?.text().to_owned();
        let said = json!({ "role": "assistant", "content": said });
        let second = turn(&[&asked, &said, &json!({ "role": "user", "content": "go on" })]);
        Ok(Self { first, second })
    }

    async fn goes_on_from_tokens(&self, fleet: &Fleet) -> Result<bool> {
        let baseline = Client::new(&fleet.baseline.address());
        let mut first = self.first.clone();
        first["return_token_ids"] = json!(true);
        let first = baseline.post_json(CHAT, &first).await?.ok()?.json();
        let mut known = ids(&first["prompt_token_ids"])?;
        known.extend(ids(&first["choices"][0]["token_ids"])?);
        // The last token's KV is not computed.
        known.pop();
        let question = json!({ "model": "sim", "messages": self.second["messages"] });
        let told = ids(&baseline.post_json("/tokenize", &question).await?.ok()?.json()["tokens"])?;
        Ok(told.starts_with(&known))
    }
}

fn streamed(turn: &Value, stream: bool) -> Value {
    let mut turn = turn.clone();
    turn["stream"] = json!(stream);
    turn
}

#[tokio::test]
async fn a_chat_that_goes_on_token_by_token_reads_back() -> Result<()> {
    for stream in [false, true] {
        let mut scene = Scene::new().await?;
        let chat = Chat::find(&scene.fleet, true).await?;
        let first = scene.right(&scene.client, CHAT, &streamed(&chat.first, stream)).await?;
        let second = scene.right(&scene.client, CHAT, &streamed(&chat.second, !stream)).await?;
        assert_eq!(scene.readbacks().await?, (1.0, 1));
        for answer in [first, second] {
            assert!(!answer.text().contains("token_ids\":["), "{}", answer.text());
        }
        scene.fleet.expect_readbacks(1);
    }
    Ok(())
}

#[tokio::test]
async fn the_same_text_of_other_tokens_does_not() -> Result<()> {
    let mut scene = Scene::new().await?;
    let chat = Chat::find(&scene.fleet, false).await?;
    scene.right(&scene.client, CHAT, &chat.first).await?;
    scene.right(&scene.client, CHAT, &chat.second).await?;
    assert_eq!((scene.readbacks().await?, scene.orphans().await?), ((0.0, 0), 1.0));
    scene.fleet.expect_readbacks(2);
    Ok(())
}

#[tokio::test]
async fn nor_does_a_chat_whose_tokens_no_engine_tells() -> Result<()> {
    let mut scene = Scene::new().await?;
    let chat = Chat::find(&scene.fleet, true).await?;
    scene.right(&scene.client, CHAT, &chat.first).await?;
    for prefill in &scene.fleet.prefill {
        prefill.fault(Fault::status(500).on_path("/tokenize").always());
    }
    scene.right(&scene.client, CHAT, &chat.second).await?;
    assert_eq!(scene.readbacks().await?, (0.0, 0));
    scene.fleet.expect_readbacks(2);
    Ok(())
}

#[tokio::test]
async fn nor_one_with_fields_that_tokenize_does_not_know() -> Result<()> {
    let mut scene = Scene::new().await?;
    let chat = Chat::find(&scene.fleet, true).await?;
    scene.right(&scene.client, CHAT, &chat.first).await?;
    let mut second = chat.second;
    second["reasoning_effort"] = json!("high");
    scene.right(&scene.client, CHAT, &second).await?;
    assert_eq!(scene.readbacks().await?, (0.0, 0));
    let asked = scene.fleet.prefill[1].requests().pop().context("it was asked")?;
    assert!(asked.json()["kv_transfer_params"]["remote_block_ids"].is_null());
    scene.fleet.expect_readbacks(2);
    Ok(())
}
