//! The simulated encoder and its consumers: what goes wrong with encodings shows as wrong text, or as a 500.

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::engine::Engine;
use serde_json::{Value, json};

use crate::load::CHAT;

fn chat(parts: &[Value]) -> Value {
    json!({ "messages": [{ "role": "user", "content": parts }], "max_tokens": 6 })
}

fn named(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url }, "uuid": format!("name of {url}") })
}

/// The encoder's entries for two images, in the order of the images.
async fn encoded(encoder: &Engine) -> Result<(Value, [Value; 2])> {
    let mut body = chat(&[named("a"), named("b")]);
    body.as_object_mut().expect("an object").remove("max_tokens");
    body["stream"] = json!(false);
    let client = Client::new(&encoder.address()).header("x-request-id", "test:0:00ff00");
    let params = client.post_json(CHAT, &body).await?.ok()?.json()["ec_transfer_params"].clone();
    let entries = params.as_object().into_iter().flat_map(|entries| entries.values());
    let mut entries: Vec<Value> = entries.cloned().collect();
    entries.sort_by_key(|entry| entry["item_indices"][0].as_u64());
    let [first, second] = [entries.remove(0), entries.remove(0)];
    Ok((params, [first, second]))
}

/// The part that stands for an image.
fn reference(layout: &Value, url: &str) -> Value {
    let grid = layout["metadata"]["image_grid_thw"][0].clone();
    json!({ "type": "image_embeds", "image_embeds": { "image_grid_thw": grid }, "uuid": format!("name of {url}") })
}

#[tokio::test]
async fn an_encoding_of_another_item_gives_another_text() -> Result<()> {
    let (encoder, engine) = (Engine::encode().start().await?, Engine::both().start().await?);
    let client = Client::new(&engine.address());
    let said = async |body: Value| {
        anyhow::Ok(client.post_json(CHAT, &body).await?.ok()?.transcript().text().to_owned())
    };
    let right = said(chat(&[named("a"), named("b")])).await?;
    for (layouts, names, is_right) in
        [([0, 1], ["a", "b"], true), ([1, 0], ["a", "b"], false), ([0, 1], ["b", "a"], false)]
    {
        let (params, entries) = encoded(&encoder).await?;
        let parts = [0, 1].map(|at| reference(&entries[layouts[at]], names[at]));
        let mut body = chat(&parts);
        body["ec_transfer_params"] = params;
        assert_eq!(said(body).await? == right, is_right, "{layouts:?} {names:?}");
    }
    assert_eq!((encoder.encodings(), encoder.violations()), (0, vec![]));
    Ok(())
}

#[tokio::test]
async fn an_encoding_that_is_not_there_fails_its_consumer() -> Result<()> {
    let (encoder, engine) = (Engine::encode().start().await?, Engine::both().start().await?);
    let client = Client::new(&engine.address());
    let (params, entries) = encoded(&encoder).await?;
    let mut body = chat(&[reference(&entries[0], "a"), reference(&entries[1], "b")]);
    assert_eq!(client.post_json(CHAT, &body).await?.status, 500, "nobody says where it is");
    assert_eq!(encoder.encodings(), 2);
    body["ec_transfer_params"] = params;
    for status in [200, 500] {
        assert_eq!(client.post_json(CHAT, &body).await?.status, status, "each is fetched once");
    }
    let (params, _) = encoded(&encoder).await?;
    body["ec_transfer_params"] = params;
    encoder.restart().await?;
    assert_eq!(client.post_json(CHAT, &body).await?.status, 500, "it was forgotten");
    Ok(())
}

#[tokio::test]
async fn what_no_encoder_should_be_sent_is_noticed() -> Result<()> {
    let encoder = Engine::encode().start().await?;
    let client = Client::new(&encoder.address());
    assert_eq!(client.post_json(CHAT, &chat(&[json!({ "type": "text", "text": "x" })])).await?.status, 400);
    assert_eq!(encoder.violations().len(), 4, "{:#?}", encoder.violations());
    Ok(())
}
