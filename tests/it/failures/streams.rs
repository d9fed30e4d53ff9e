//! Decode fails in the middle of its answer: what can be made good is, and what can't is not hidden.

use anyhow::Result;
use edge_router_tests::engine::{End, Fault};
use serde_json::json;

use super::{Scene, assert_error, story};
use crate::load::{CHAT, COMPLETIONS, chat};

#[tokio::test]
async fn an_error_event_is_passed_on_as_the_engine_sends_it() -> Result<()> {
    let scene = Scene::new(1, 1).await?;
    for tokens in [0, 2] {
        for (path, body) in [(COMPLETIONS, story(true)), (CHAT, chat(0))] {
            scene.fleet.decode[0].fault(Fault::error_after(tokens).on_decode());
            scene.fleet.baseline.fault(Fault::error_after(tokens));
            let said = scene.router.stream(path, &body).await?.transcript().await?;
            let expected = scene.fleet.baseline(path, &body).await?;
            assert!(said.error.is_some() && said.done, "{said:?}");
            assert_eq!((said.error, said.choices), (expected.error, expected.choices));
        }
    }
    assert_eq!(scene.generations(), (vec![4], vec![4]));
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_stream_that_breaks_off_says_so_in_three_ways() -> Result<()> {
    let scene = Scene::new(1, 2).await?;
    let expected = scene.fleet.baseline(COMPLETIONS, &story(true)).await?;
    for frames in [1, 3] {
        for decode in &scene.fleet.decode {
            decode.clear_faults();
            decode.fault(Fault::cut_after(frames).on_decode());
        }
        let mut stream = scene.router.stream(COMPLETIONS, &story(true)).await?;
        assert_eq!(stream.status, 200);
        let (mut events, end) = (Vec::new(), loop_until_end(&mut stream).await);
        events.extend(end.events);
        assert!(end.broken, "the connection ended as if all had been said");
        let last = events.pop().map(|event| event.json()).unwrap_or_default();
        assert_eq!(last["error"]["code"], "engine_answer_cut", "{last}");
        assert!(!events.iter().any(edge_router_tests::sse::Event::is_done));
        // What had come before is right, and whole events.
        let said = edge_router_tests::sse::Transcript::of_events(&events);
        assert_eq!(said.choices[&0].pieces, frames);
        assert!(expected.text().starts_with(said.text()));
    }
    // Nothing is generated twice once the client has a part of it.
    assert_eq!(scene.generations().1.iter().sum::<usize>(), 2);
    assert_eq!(scene.count("retries", "").await?, 0.0);
    scene.router.wait_for_log("answer broke off").await?;
    scene.fleet.assert_quiescent().await;
    Ok(())
}

struct Ended {
    events: Vec<edge_router_tests::sse::Event>,
    broken: bool,
}

async fn loop_until_end(stream: &mut edge_router_tests::client::Stream) -> Ended {
    let mut events = Vec::new();
    loop {
        match stream.next_event().await {
            Ok(Some(arrival)) => events.push(arrival.event),
            Ok(None) => return Ended { events, broken: false },
            Err(_) => return Ended { events, broken: true },
        }
    }
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_ended_with_an_error() -> Result<()> {
    let scene = Scene::with(1, 1, |router| router.arg("--stream-idle-timeout-s").arg("1")).await?;
    scene.fleet.decode[0].fault(Fault::stall_after(2).on_decode());
    let ended = loop_until_end(&mut scene.router.stream(COMPLETIONS, &story(true)).await?).await;
    assert!(ended.broken);
    assert_eq!(
        ended.events.last().map(|e| e.json()["error"]["code"].clone()),
        Some("engine_answer_cut".into())
    );
    scene.fleet.assert_quiescent().await;
    assert!(scene.fleet.decode[0].requests()[0].aborted());
    Ok(())
}

#[tokio::test]
async fn a_json_answer_that_breaks_off_is_made_good() -> Result<()> {
    let scene = Scene::new(1, 2).await?;
    let first = &scene.fleet.decode[0];
    first.fault(Fault::close_after_headers().on_decode());
    scene.served(false).await?;
    assert_eq!(first.requests()[0].end, Some(End::Cut));
    assert_eq!(scene.count("retries", "leg=\"decode\"").await?, 1.0);
    // The handle had been used: the second attempt has one of its own.
    assert_eq!(scene.generations(), (vec![2], vec![1, 1]));
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_json_answer_that_breaks_off_everywhere_is_an_error() -> Result<()> {
    let scene = Scene::new(1, 1).await?;
    scene.fleet.decode[0].fault(Fault::close_after_headers().on_decode());
    assert_error(&scene.answer(false).await?, 502, "engine_answer_cut");
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_json_answer_that_never_ends_is_given_up() -> Result<()> {
    let scene = Scene::with(1, 1, |router| router.arg("--stream-idle-timeout-s").arg("1")).await?;
    scene.fleet.decode[0].fault(Fault::stall_after(0).on_decode());
    assert_error(&scene.answer(false).await?, 504, "engine_timeout");
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn an_engine_that_never_ends_an_answer_is_taken_out() -> Result<()> {
    for stream in [false, true] {
        let scene = Scene::new(1, 1).await?;
        scene.fleet.decode[0].fault(Fault::cut_after(usize::from(stream)).on_decode().always());
        for _ in 0..3 {
            let mut answer = scene.router.stream(COMPLETIONS, &story(stream)).await?;
            loop_until_end(&mut answer).await;
        }
        let status = scene.router.status().await?;
        let state = |role: &str| {
            let all = status["instances"].as_array().cloned().unwrap_or_default();
            all.iter().find(|i| i["role"] == role).map_or(json!(null), |i| i["state"].clone())
        };
        assert_eq!((state("decode"), state("prefill")), (json!("unhealthy"), json!("healthy")), "{status}");
        assert_error(&scene.answer(stream).await?, 503, "no_instance");
    }
    Ok(())
}
