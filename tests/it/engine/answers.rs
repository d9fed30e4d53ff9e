//! What an answer says beyond its shape: which choice is which, what counts, when it ends.

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::engine::Engine;
use edge_router_tests::sse::Transcript;
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, ask, story};

async fn whole(engine: &Engine, path: &str, body: &Value) -> Result<Transcript> {
    Ok(Client::new(&engine.address()).post_json(path, body).await?.ok()?.transcript())
}

async fn streamed(engine: &Engine, path: &str, body: &Value) -> Result<Transcript> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    Client::new(&engine.address()).stream(path, &body).await?.transcript().await
}

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

#[tokio::test]
async fn a_stream_says_what_a_whole_answer_says() -> Result<()> {
    let engine = Engine::both().start().await?;
    for (path, body) in [
        (COMPLETIONS, json!({ "prompt": [story(1), story(2)], "n": 2, "max_tokens": 5 })),
        (COMPLETIONS, json!({ "prompt": story(1), "echo": true, "max_tokens": 5 })),
        (CHAT, json!({ "messages": user("hi"), "n": 2, "max_completion_tokens": 5, "max_tokens": 99 })),
    ] {
        let (whole, streamed) = (whole(&engine, path, &body).await?, streamed(&engine, path, &body).await?);
        assert_eq!(whole.texts(), streamed.texts(), "{body}");
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(whole.tokens(count), streamed.tokens(count), "{count}");
        }
        assert_eq!(whole.tokens("completion_tokens"), Some(5 * whole.choices.len() as u64));
    }
    Ok(())
}

#[tokio::test]
async fn choices_are_in_order_of_prompts_then_copies() -> Result<()> {
    let engine = Engine::both().start().await?;
    let body = |prompt: Value| json!({ "prompt": prompt, "n": 2, "max_tokens": 5 });
    let both = whole(&engine, COMPLETIONS, &body(json!([story(1), story(2)]))).await?;
    let first = whole(&engine, COMPLETIONS, &body(json!(story(1)))).await?;
    let second = whole(&engine, COMPLETIONS, &body(json!([story(2)]))).await?;
    assert_eq!(both.texts(), [first.texts(), second.texts()].concat());
    Ok(())
}

#[tokio::test]
async fn an_echo_repeats_the_prompt() -> Result<()> {
    let engine = Engine::both().start().await?;
    let body = |max_tokens: u32| json!({ "prompt": story(1), "echo": true, "max_tokens": max_tokens });
    assert_eq!(whole(&engine, COMPLETIONS, &body(0)).await?.text(), story(1));
    let plain = whole(&engine, COMPLETIONS, &json!({ "prompt": story(1), "max_tokens": 4 })).await?;
    let echoed = whole(&engine, COMPLETIONS, &body(4)).await?;
    assert_eq!(echoed.text(), format!("{}{}", story(1), plain.text()));
    Ok(())
}

#[tokio::test]
async fn an_answer_ends_at_its_limit_or_by_itself() -> Result<()> {
    let engine = Engine::both().start().await?;
    let limited = whole(&engine, CHAT, &json!({ "messages": user("hi"), "max_tokens": 200 })).await?;
    assert_eq!(limited.choices[&0].finish_reason.as_deref(), Some("length"));
    assert_eq!(limited.tokens("completion_tokens"), Some(200));
    let open = whole(&engine, CHAT, &json!({ "messages": user("hi") })).await?;
    assert_eq!(open.choices[&0].finish_reason.as_deref(), Some("stop"));
    let longer = json!({ "messages": user("hi"), "min_tokens": 400 });
    assert!(whole(&engine, CHAT, &longer).await?.tokens("completion_tokens") >= Some(400));
    Ok(())
}

#[tokio::test]
async fn a_stop_text_ends_an_answer_before_itself() -> Result<()> {
    let engine = Engine::both().start().await?;
    let free = whole(&engine, COMPLETIONS, &json!({ "prompt": story(1), "max_tokens": 8 })).await?;
    let words: Vec<&str> = free.text().split_inclusive(' ').collect();
    let body = json!({ "prompt": story(1), "max_tokens": 8, "stop": [words[3].trim()] });
    let mut answer = ask(&engine, &body).await?.ok()?.json();
    let choice = answer["choices"][0].take();
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(words[3].trim())));
    assert_eq!(choice["text"], json!(words[..3].concat()));
    Ok(())
}

#[tokio::test]
async fn whatever_is_rendered_changes_the_text() -> Result<()> {
    let engine = Engine::both().start().await?;
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    let mut said = Vec::new();
    for body in [
        json!({ "messages": user("hi"), "max_tokens": 8 }),
        json!({ "messages": user("hi "), "max_tokens": 8 }),
        json!({ "messages": user("hi"), "max_tokens": 8, "tools": tools }),
        json!({ "messages": [{ "role": "system", "content": "hi" }], "max_tokens": 8 }),
    ] {
        said.push(whole(&engine, CHAT, &body).await?.text().to_owned());
    }
    let mut distinct = said.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), said.len());
    Ok(())
}

#[tokio::test]
async fn a_request_id_names_the_answer() -> Result<()> {
    let engine = Engine::both().start().await?;
    let client = Client::new(&engine.address()).header("x-request-id", "mine");
    let body = json!({ "prompt": "hi", "request_id": "body", "max_tokens": 1 });
    assert_eq!(client.post_json(COMPLETIONS, &body).await?.transcript().id, "cmpl-mine");
    assert_eq!(ask(&engine, &body).await?.transcript().id, "cmpl-body");
    Ok(())
}
