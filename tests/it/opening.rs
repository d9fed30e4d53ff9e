//! `--hold-opening-ms`: a KV cache that can't be fetched is made good in streams too, since their client has not been
//! shown that they have begun.

use anyhow::{Result, ensure};
use edge_router_tests::client::{Answer, PATIENCE};
use edge_router_tests::engine::{End, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::load::{CHAT, COMPLETIONS};

/// Longer than any test waits: what is held this long is held until the engine says something.
const LONG: u32 = 3_600_000;

struct Scene {
    fleet: Fleet,
    router: Router,
}

impl Scene {
    async fn new(prefill: usize, decode: usize, hold_ms: u32, args: &[&str]) -> Result<Self> {
        let fleet = Fleet::start(prefill, decode).await?;
        let hold_ms = hold_ms.to_string();
        let fixed = ["--probe-interval-ms", "3600000", "--hold-opening-ms", &hold_ms];
        let router = fixed.iter().chain(args).fold(fleet.router(), |router, arg| router.arg(arg));
        let router = router.start().await?;
        Ok(Self { fleet, router })
    }

    /// A request that must be answered as if nothing had happened.
    async fn served(&self, path: &str) -> Result<()> {
        let said = self.router.stream(path, &story(path)).await?.transcript().await?;
        let expected = self.fleet.baseline(path, &story(path)).await?;
        ensure!(said.error.is_none() && said.done, "{said:?}");
        ensure!(said.text() == expected.text() && said.usage == expected.usage, "{said:?}\n{expected:?}");
        Ok(())
    }

    async fn answer(&self, path: &str) -> Result<Answer> {
        self.router.stream(path, &story(path)).await?.whole().await
    }

    async fn retries(&self) -> Result<f64> {
        Ok(self.router.metrics().await?.sum("edge_router_retries_total", &["leg=\"decode\""]))
    }

    fn legs(&self) -> (usize, usize) {
        let of = |engines: &[edge_router_tests::engine::Engine]| {
            engines.iter().map(|engine| engine.requests().len()).sum()
        };
        (of(&self.fleet.prefill), of(&self.fleet.decode))
    }
}

fn story(path: &str) -> Value {
    let mut body = json!({
        "model": "sim", "max_tokens": 6, "stream": true, "stream_options": { "include_usage": true },
    });
    match path {
        CHAT => body["messages"] = json!([{ "role": "user", "content": "tell me of the wind and the sea" }]),
        _ => body["prompt"] = json!("tell me of the wind and the sea"),
    }
    body
}

#[tokio::test]
async fn an_error_before_the_first_word_is_made_good() -> Result<()> {
    for pairs in [1, 2] {
        for path in [COMPLETIONS, CHAT] {
            let scene = Scene::new(pairs, pairs, LONG, &[]).await?;
            scene.fleet.decode[0].fault(Fault::error_after(0).on_decode());
            scene.served(path).await?;
            assert_eq!(scene.retries().await?, 1.0);
            // With another prefill instance there is another handle; else decode computes the prompt.
            assert_eq!(scene.legs(), (pairs, 2));
            let failures = scene.router.metrics().await?.sum("edge_router_instance_failures", &[]);
            assert_eq!(failures, 0.0, "the transfer is to blame, and no engine");
            scene.fleet.assert_quiescent().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn with_no_try_left_the_error_has_a_status_of_its_own() -> Result<()> {
    for path in [COMPLETIONS, CHAT] {
        let scene = Scene::new(1, 1, LONG, &["--retries", "0"]).await?;
        scene.fleet.decode[0].fault(Fault::error_after(0).on_decode());
        scene.fleet.baseline.fault(Fault::error_after(0));
        let answer = scene.answer(path).await?;
        let event = scene.fleet.baseline(path, &story(path)).await?;
        assert_eq!(answer.status, 500);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(Some(&answer.json()["error"]), event.error.as_ref());
        assert_eq!(scene.retries().await?, 0.0);
        let counted = scene.router.metrics().await?.sum("edge_router_requests_total", &["status=\"500\""]);
        assert_eq!(counted, 1.0);
        scene.fleet.assert_quiescent().await;
    }
    Ok(())
}

/// An engine that refuses a request from inside a stream, as vLLM does with a rank that it does not have.
#[tokio::test]
async fn a_refusal_in_a_stream_is_the_answer_and_is_not_tried_again() -> Result<()> {
    let mut scene = Scene::new(1, 2, LONG, &[]).await?;
    let refusal = r#"{"error":{"message":"no such rank","type":"BadRequestError","param":null,"code":400}}"#;
    let stream = format!("data: {refusal}\n\ndata: [DONE]\n\n");
    for decode in &scene.fleet.decode {
        decode.fault(Fault::status(200).body("text/event-stream", &stream).on_decode());
    }
    let answer = scene.answer(CHAT).await?;
    assert_eq!((answer.status, &*answer.text()), (400, refusal));
    assert_eq!(scene.legs(), (1, 1));
    scene.fleet.expect_pinned(1);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_first_word_is_made_good_elsewhere() -> Result<()> {
    // In a chat the role event has come.
    for (path, frames) in [(COMPLETIONS, 0), (CHAT, 0), (CHAT, 1)] {
        let scene = Scene::new(1, 2, LONG, &[]).await?;
        scene.fleet.decode[0].fault(Fault::cut_after(frames).on_decode());
        scene.served(path).await?;
        assert_eq!(scene.fleet.decode[0].requests()[0].end, Some(End::Cut));
        assert_eq!((scene.retries().await?, scene.legs()), (1.0, (2, 2)));
        scene.fleet.assert_quiescent().await;

        let scene = Scene::new(1, 1, LONG, &[]).await?;
        scene.fleet.decode[0].fault(Fault::cut_after(frames).on_decode());
        crate::failures::assert_error(&scene.answer(path).await?, 502, "engine_answer_cut");
        let decode = format!("instance=\"{}\"", scene.fleet.decode[0].address());
        let failures = scene.router.metrics().await?.sum("edge_router_instance_failures", &[&decode]);
        assert_eq!(failures, 1.0);
        scene.fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn what_was_held_arrives_byte_for_byte() -> Result<()> {
    for fault in [Fault::keep_alive_comments(), Fault::one_byte_writes(), Fault::reframe(7)] {
        for path in [COMPLETIONS, CHAT] {
            let mut texts = Vec::new();
            for hold_ms in [0, LONG] {
                let scene = Scene::new(1, 1, hold_ms, &[]).await?;
                scene.fleet.decode[0].fault(fault.clone().on_decode());
                texts.push(without_ids(&scene.answer(path).await?.text()));
                scene.fleet.assert_quiescent().await;
            }
            assert_eq!(texts[0], texts[1], "{fault:?}");
        }
    }
    Ok(())
}

/// A stream without what differs from one request to the next: `id` and `created` come first in each event.
fn without_ids(stream: &str) -> Vec<String> {
    let rest_of = |line: &str| line.split_once("\"model\"").map_or(line, |(_, rest)| rest).to_owned();
    stream.split('\n').map(rest_of).collect()
}

/// Nothing comes after the role event; the client gets it all the same, and long before the test is out of patience.
#[tokio::test]
async fn an_engine_that_falls_silent_is_held_no_longer_than_the_limit() -> Result<()> {
    let scene = Scene::new(1, 1, 50, &[]).await?;
    scene.fleet.decode[0].fault(Fault::stall_after(1).on_decode());
    let mut stream = scene.router.stream(CHAT, &story(CHAT)).await?;
    let role = stream.next_event().await?.map(|arrival| arrival.event.json());
    assert_eq!(role.map(|role| role["choices"][0]["delta"]["role"].clone()), Some(json!("assistant")));
    drop(stream);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_while_it_is_held_stops_the_engine() -> Result<()> {
    let scene = Scene::new(1, 1, LONG, &[]).await?;
    let decode = &scene.fleet.decode[0];
    decode.fault(Fault::stall_after(1).on_decode());
    let body = story(CHAT);
    tokio::select! {
        _ = scene.router.stream(CHAT, &body) => panic!("it was not held"),
        at_it = edge_router_tests::patience::eventually("the role is sent", || {
            decode.requests().first().is_some_and(|request| request.frames == 1)
        }) => at_it?,
    }
    scene.fleet.assert_quiescent().await;
    edge_router_tests::patience::eventually("decode is told", || decode.requests()[0].aborted()).await?;
    let settled = crate::in_flight::settled(&scene.router).await?;
    assert_eq!(settled.sum("edge_router_requests_cancelled_total", &[]), 1.0);
    Ok(())
}

/// Only a leg that carries a handle can fail to fetch it.
#[tokio::test]
async fn a_leg_without_a_handle_is_not_held() -> Result<()> {
    let scene = Scene::new(1, 1, LONG, &[]).await?;
    scene.fleet.prefill[0].fault(Fault::status(500).on_prefill());
    scene.fleet.decode[0].fault(Fault::stall_after(1).on_decode());
    let body = story(CHAT);
    let mut stream = timeout(PATIENCE, scene.router.stream(CHAT, &body)).await??;
    assert!(stream.next_event().await?.is_some());
    drop(stream);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn by_default_nothing_is_held() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let decode = &fleet.decode[0];
    decode.fault(Fault::stall_after(1).on_decode());
    let mut stream = router.stream(CHAT, &story(CHAT)).await?;
    assert!(stream.next_event().await?.is_some());
    drop(stream);
    decode.fault(Fault::error_after(0).on_decode());
    fleet.baseline.fault(Fault::error_after(0));
    let said = router.stream(CHAT, &story(CHAT)).await?.transcript().await?;
    let expected = fleet.baseline(CHAT, &story(CHAT)).await?;
    assert_eq!((said.error, said.choices, said.done), (expected.error, expected.choices, expected.done));
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_long_opening_is_held_only_in_part() -> Result<()> {
    let scene = Scene::new(1, 1, LONG, &[]).await?;
    let decode = &scene.fleet.decode[0];
    // A comment of more than the router holds, and then nothing.
    decode.fault(Fault::padded_frames(100_000).on_decode());
    decode.fault(Fault::stall_after(1).on_decode());
    let mut stream = scene.router.stream(CHAT, &story(CHAT)).await?;
    let comment = stream.next_event().await?.map(|arrival| arrival.event.comments[0].len());
    assert_eq!(comment, Some(100_000));
    drop(stream);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn it_is_set_like_every_other_setting() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    for router in [
        fleet.router().arg("--hold-opening-ms=3600000"),
        fleet.router().env("EDGE_ROUTER_HOLD_OPENING_MS", "3600000"),
        fleet.router().config_toml("hold_opening_ms = 3600000"),
    ] {
        let router = router.start().await?;
        fleet.decode[0].fault(Fault::error_after(0).on_decode());
        let said = router.stream(CHAT, &story(CHAT)).await?.transcript().await?;
        assert_eq!(said.text(), fleet.baseline(CHAT, &story(CHAT)).await?.text());
    }
    fleet.assert_quiescent().await;
    Ok(())
}
