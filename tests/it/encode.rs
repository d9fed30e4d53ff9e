//! Chats whose media are encoded apart: the text is that of one engine alone, whoever encoded what.

mod connectors;
mod failures;
mod push;
mod registration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use edge_router_tests::client::Answer;
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::{Value, json};

use crate::load::CHAT;

/// Encoders and their consumers behind a router.
struct Scene {
    fleet: Fleet,
    router: Router,
}

impl Scene {
    async fn new(encode: usize, prefill: usize, decode: usize) -> Result<Self> {
        Self::with(encode, prefill, decode, |router| router).await
    }

    async fn with(
        encode: usize,
        prefill: usize,
        decode: usize,
        set: impl FnOnce(RouterBuilder) -> RouterBuilder,
    ) -> Result<Self> {
        let fleet = Fleet::start(prefill, decode).await?.with_encoders(encode).await?;
        let router = set(fleet.router()).start().await?;
        Ok(Self { fleet, router })
    }

    /// Encoders whose consumers compute prompts and generate.
    async fn of_consumers(encode: usize, consumers: usize) -> Result<Self> {
        let fleet = Fleet::of_consumers(encode, consumers).await?;
        let router = fleet.decode.iter().fold(fleet.router(), RouterBuilder::prefill).start().await?;
        Ok(Self { fleet, router })
    }

    /// One request, which must be answered as one engine alone does.
    async fn served(&self, body: &Value) -> Result<()> {
        let answer = self.router.stream(CHAT, body).await?;
        let said = match (answer.status, body["stream"] == json!(true)) {
            (200, true) => answer.transcript().await?,
            _ => answer.whole().await?.ok()?.transcript(),
        };
        let right = self.fleet.baseline(CHAT, body).await?;
        ensure!(said.error.is_none() && said.done, "{said:?}");
        ensure!(said.texts() == right.texts() && said.usage == right.usage, "{said:?}\n{right:?}");
        Ok(())
    }

    async fn answer(&self, body: &Value) -> Result<Answer> {
        self.router.stream(CHAT, body).await?.whole().await
    }

    /// How many requests all encoders, all prefill and all decode engines have seen.
    fn legs(&self) -> [usize; 3] {
        let of = |engines: &[Engine]| engines.iter().map(|engine| engine.requests().len()).sum();
        [of(&self.fleet.encode), of(&self.fleet.prefill), of(&self.fleet.decode)]
    }

    async fn count(&self, counter: &str, label: &str) -> Result<f64> {
        let labels: &[&str] = if label.is_empty() { &[] } else { &[label] };
        Ok(self.router.metrics().await?.sum(&format!("edge_router_{counter}_total"), labels))
    }
}

fn text() -> Value {
    json!({ "type": "text", "text": "and this?" })
}

fn image(name: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": format!("http://media/{name}") } })
}

fn video(name: &str) -> Value {
    json!({ "type": "video_url", "video_url": { "url": format!("http://media/{name}") } })
}

fn sound(name: &str) -> Value {
    json!({ "type": "audio_url", "audio_url": { "url": format!("http://media/{name}") } })
}

fn chat(parts: &[Value]) -> Value {
    json!({ "model": "sim", "messages": [{ "role": "user", "content": parts }], "max_tokens": 6, "seed": 5 })
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    body
}

/// The parts of an engine's only or latest request.
fn parts_seen(engine: &Engine) -> Vec<Value> {
    let request = engine.requests().pop().map(|request| request.json()).unwrap_or_default();
    request["messages"][0]["content"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn an_image_is_encoded_before_the_prompt_is_computed() -> Result<()> {
    let scene = Scene::new(1, 1, 1).await?;
    for (round, body) in
        [chat(&[text(), image("a")]), streamed(chat(&[image("b"), text()]))].iter().enumerate()
    {
        scene.served(body).await?;
        assert_eq!(scene.legs(), [round + 1; 3]);
        assert_eq!(scene.fleet.encodings(), 0, "fetched once");
    }
    for engine in [&scene.fleet.prefill[0], &scene.fleet.decode[0]] {
        let kinds: Vec<_> = parts_seen(engine).iter().map(|part| part["type"].clone()).collect();
        assert_eq!(kinds, ["image_embeds", "text"]);
        let params = engine.requests()[0].json()["ec_transfer_params"].clone();
        assert_eq!(params.as_object().map(serde_json::Map::len), Some(1), "{params}");
    }
    assert_eq!(scene.fleet.decode[0].counters().remote_loads, 2);
    assert_eq!(scene.count("fallbacks", "").await?, 0.0);
    Ok(())
}

/// Only the item is exchanged: the rest of each leg is the client's, byte for byte.
#[tokio::test]
async fn what_is_no_item_stays_byte_for_byte() -> Result<()> {
    let scene = Scene::of_consumers(1, 1).await?;
    let item = r#"{ "type":"image_url" ,"image_url":{"url":"a"}, "uuid" : "mine"}"#;
    let own = r#", "ec_transfer_params":{"evil":{"peer_host":"10.0.0.1"}}"#;
    let (before, between) = (
        r#"{ "temperature": 1e0, "messages" :[{"content":[ {"text":"\u0041\/","type":"text"} , "#,
        r#" ], "role":"user","x":1.50}]"#,
    );
    let after = r#", "max_tokens":4, "unknown":18446744073709551616"#;
    let body = format!("{before}{item}{between}{own}{after} }}");
    let client = scene.router.client();
    let answer = client.post_bytes(CHAT, "application/json", Bytes::from(body.clone())).await?.ok()?;
    let right = scene.fleet.baseline(CHAT, &serde_json::from_str(&body)?).await?;
    assert_eq!(answer.transcript().text(), right.text());
    let seen = scene.fleet.decode[0].requests().remove(0);
    let seen = std::str::from_utf8(&seen.body)?;
    let rest = seen.strip_prefix(before).expect("the beginning is the client's");
    let (reference, rest) = rest.split_once(between).expect("what follows the item is the client's");
    assert!(
        reference.starts_with(r#"{"type":"image_embeds","image_embeds":{"image_grid_thw":["#)
            && reference.ends_with(r#"},"uuid":"mine"}"#),
        "{reference}"
    );
    let (handles, _) = rest.split_once(after).expect("so is the end");
    assert!(handles.starts_with(r#", "ec_transfer_params":{"mm-"#) && !handles.contains("evil"), "{handles}");
    let encoder = scene.fleet.encode[0].requests().remove(0);
    assert_eq!(
        std::str::from_utf8(&encoder.body)?,
        format!(r#"{{"messages":[{{"role":"user","content":[{item}]}}],"stream":false}}"#)
    );
    assert!(encoder.header("x-request-id").is_some_and(|id| id.contains(":0:")));
    Ok(())
}

#[tokio::test]
async fn images_are_spread_over_the_encoders_and_grouped_on_each() -> Result<()> {
    for (max_batch, legs) in [("0", 2), ("2", 3), ("1", 5)] {
        let scene = Scene::with(2, 1, 1, |router| router.arg("--encode-max-batch").arg(max_batch)).await?;
        let mut body = chat(&[image("a"), image("b"), text(), image("c"), image("a")]);
        let more = json!({ "role": "user", "content": [image("d"), image("e")] });
        body["messages"].as_array_mut().expect("a list").push(more);
        scene.served(&body).await?;
        assert_eq!(scene.legs(), [legs, 1, 1], "batches of {max_batch}");
        assert!(scene.fleet.encode.iter().all(|encoder| !encoder.requests().is_empty()));
        assert_eq!(scene.fleet.encodings(), 0, "one image that is there twice is encoded once");
        scene.served(&streamed(body)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn images_sounds_and_videos_go_together() -> Result<()> {
    let scene = Scene::new(3, 1, 2).await?;
    let audio = json!({ "type": "input_audio", "input_audio": { "data": "UklGRg==", "format": "wav" } });
    let body = chat(&[image("a"), audio, video("b"), text(), sound("c"), image("d"), video("e")]);
    scene.served(&body).await?;
    let kinds: Vec<_> = parts_seen(&scene.fleet.prefill[0]).iter().map(|part| part["type"].clone()).collect();
    let expected = [
        "image_embeds",
        "audio_embeds",
        "video_embeds",
        "text",
        "audio_embeds",
        "image_embeds",
        "video_embeds",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(scene.fleet.encodings(), 0);
    scene.served(&streamed(body)).await
}

#[tokio::test]
async fn text_passes_the_encoders_by() -> Result<()> {
    let scene = Scene::new(1, 1, 1).await?;
    scene.served(&chat(&[text()])).await?;
    scene.served(&streamed(chat(&[text(), json!({ "type": "text", "text": "image_url" })]))).await?;
    assert_eq!(scene.legs(), [0, 2, 2]);
    Ok(())
}

#[tokio::test]
async fn an_item_whose_layout_is_not_told_stays_as_it_is() -> Result<()> {
    let scene = Scene::new(1, 1, 1).await?;
    scene.served(&chat(&[image("a"), image("b.plain"), video("c")])).await?;
    let seen = parts_seen(&scene.fleet.prefill[0]);
    assert_eq!(
        (&seen[0]["type"], &seen[1], &seen[2]["type"]),
        (&json!("image_embeds"), &image("b.plain"), &json!("video_embeds"))
    );
    // With a sound among them, all stay; under the names that their encodings have.
    scene.served(&chat(&[image("a"), image("b.plain"), sound("c")])).await?;
    let seen = parts_seen(&scene.fleet.prefill[0]);
    let kinds: Vec<_> = seen.iter().map(|part| part["type"].clone()).collect();
    assert_eq!(kinds, ["image_url", "image_url", "audio_url"]);
    assert!(seen.iter().all(|part| part["uuid"].is_string()));
    Ok(())
}

#[tokio::test]
async fn one_consumer_leg_where_nothing_but_encoding_is_split_off() -> Result<()> {
    for consumers in [1, 2] {
        let scene = Scene::of_consumers(2, consumers).await?;
        scene.served(&chat(&[image("a"), video("b"), text()])).await?;
        scene.served(&streamed(chat(&[image("c"), text()]))).await?;
        scene.served(&chat(&[text()])).await?;
        assert_eq!(scene.legs(), [3, 0, 3]);
        assert_eq!(scene.count("fallbacks", "").await?, 0.0);
        assert_eq!(scene.fleet.encodings(), 0);
    }
    Ok(())
}

#[tokio::test]
async fn several_continuations_share_the_encodings() -> Result<()> {
    let scene = Scene::new(2, 1, 1).await?;
    let mut body = chat(&[image("a"), video("b"), text()]);
    body["n"] = json!(3);
    scene.served(&body).await?;
    scene.served(&streamed(body)).await?;
    assert_eq!(scene.legs(), [4, 0, 2]);
    assert_eq!(scene.fleet.encodings(), 0);
    Ok(())
}

/// With fewer places than items, they take turns.
#[tokio::test]
async fn more_items_than_the_encoders_have_places_for_are_encoded_in_turn() -> Result<()> {
    let scene = Scene::with(2, 1, 1, |router| router.arg("--max-in-flight").arg("1")).await?;
    let videos: Vec<Value> = (0..6).map(|n| video(&n.to_string())).collect();
    scene.served(&chat(&videos)).await?;
    assert_eq!(scene.legs(), [6, 1, 1]);
    Ok(())
}

#[tokio::test]
async fn what_shapes_an_encoding_reaches_the_encoder() -> Result<()> {
    let scene = Scene::new(1, 1, 1).await?;
    let mut body = chat(&[image("a")]);
    body["mm_processor_kwargs"] = json!({ "max_pixels": 9 });
    body["priority"] = json!(2);
    scene.served(&body).await?;
    let seen = scene.fleet.encode[0].requests().remove(0).json();
    assert_eq!((&seen["mm_processor_kwargs"], &seen["priority"]), (&json!({ "max_pixels": 9 }), &json!(2)));
    assert_eq!(seen["messages"][0]["content"].as_array().map(Vec::len), Some(1));
    Ok(())
}
