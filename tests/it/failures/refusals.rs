//! An engine refuses a request for what is in it, or for want of room: the client is told in the engine's words.

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::engine::Fault;
use serde_json::json;

use super::{PAGE, Scene};
use crate::load::COMPLETIONS;

const TOO_LONG: &str = r#"{ "error": {"message":"too long",  "type":"BadRequestError", "code":400} }"#;

#[tokio::test]
async fn prefills_refusal_is_the_answer_and_decode_is_not_asked() -> Result<()> {
    for (status, kind, text) in [
        (400, "application/json", TOO_LONG),
        (404, "application/json; charset=utf-8", r#"{"error":"no such model"}"#),
        (422, "text/plain", "can't fetch the image"),
        (429, "application/json", "not even JSON"),
    ] {
        let scene = Scene::new(2, 1).await?;
        for stream in [false, true] {
            for prefill in &scene.fleet.prefill {
                prefill.clear_faults();
                prefill.fault(Fault::status(status).body(kind, text).header("retry-after", "9").on_prefill());
            }
            let answer = scene.answer(stream).await?;
            assert_eq!((answer.status, &*answer.text()), (status, text));
            assert_eq!(answer.header("content-type"), Some(kind));
            assert_eq!(answer.header("retry-after"), Some("9"));
        }
        let (prefill, decode) = scene.generations();
        assert_eq!((prefill.iter().sum::<usize>(), decode), (2, vec![0]));
        assert_eq!(scene.count("retries", "").await?, 0.0);
        scene.fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn decodes_refusal_is_the_answer_and_frees_prefill() -> Result<()> {
    let scene = Scene::new(1, 2).await?;
    // Too long for decode, which has to find room for the answer, and not for prefill.
    for stream in [false, true] {
        let body =
            json!({ "model": "sim", "prompt": "tell me more", "max_tokens": 40_000, "stream": stream });
        let direct = Client::new(&scene.fleet.baseline.address()).post_json(COMPLETIONS, &body).await?;
        let answer = scene.router.post_json(COMPLETIONS, &body).await?;
        assert_eq!(direct.status, 400);
        assert_eq!((answer.status, answer.text()), (400, direct.text()));
        assert_eq!(answer.header("content-type"), direct.header("content-type"));
    }
    assert_eq!(scene.count("retries", "").await?, 0.0);
    assert_eq!(scene.generations().1.iter().sum::<usize>(), 2);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn the_last_engines_error_is_passed_on_as_it_is() -> Result<()> {
    for (status, kind, text) in
        [(500, "text/html", PAGE), (503, "text/plain", "queue is full"), (501, "application/json", "{}")]
    {
        let mut scene = Scene::new(1, 1).await?;
        let fault = Fault::status(status).body(kind, text).header("retry-after", "7").on_decode();
        scene.fleet.decode[0].fault(fault.always());
        for stream in [false, true] {
            let answer = scene.answer(stream).await?;
            assert_eq!((answer.status, &*answer.text()), (status, text));
            assert_eq!(answer.header("content-type"), Some(kind));
            assert_eq!(answer.header("retry-after"), Some("7"));
        }
        scene.fleet.expect_pinned(scene.fleet.prefill[0].pinned());
        scene.fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_full_decode_engine_gives_way_to_another_with_a_fresh_prefill() -> Result<()> {
    let mut scene = Scene::new(2, 2).await?;
    for stream in [false, true] {
        for decode in &scene.fleet.decode {
            decode.clear_faults();
        }
        // Whichever is asked first is full.
        let full = Fault::status(503).header("retry-after", "7").on_decode();
        let asked_first = scene.generations().1.iter().sum::<usize>() % 2;
        scene.fleet.decode[asked_first].fault(full);
        scene.served(stream).await?;
    }
    let retried = scene.count("retries", "leg=\"decode\"").await?;
    assert!(retried >= 1.0);
    let (prefill, decode) = scene.generations();
    assert_eq!(prefill.iter().sum::<usize>(), 2 + retried as usize);
    assert_eq!(decode.iter().sum::<usize>(), 2 + retried as usize);
    let loads: u64 = scene.fleet.decode.iter().map(|decode| decode.counters().remote_loads).sum();
    assert_eq!(loads, 2);
    // What the full one would have fetched is pinned until its lease ends, and counted.
    assert_eq!(scene.count("orphaned_handles", "").await?, retried);
    scene.fleet.expect_pinned(retried as usize);
    scene.fleet.assert_quiescent().await;
    Ok(())
}
