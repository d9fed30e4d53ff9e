//! Renderers that fail, and clients that leave.

use anyhow::Result;
use edge_router_tests::engine::{End, Fault};
use edge_router_tests::patience::eventually;

use super::*;
use crate::failures::assert_error;

const RENDER: &str = "/v1/chat/completions/render";
const DERENDER: &str = "/v1/chat/completions/derender";

#[tokio::test]
async fn a_renderer_that_fails_is_followed_by_another() -> Result<()> {
    for fault in [Fault::status(500), Fault::close_before_headers(), Fault::status(503), Fault::lose_answer()]
    {
        for path in [RENDER, DERENDER] {
            for stream in [false, true] {
                // Of three, each gets each kind of call within three requests.
                let scene = Scene::new(3).await?;
                scene.renderers[0].fault(fault.clone().always().on_path(path));
                for _ in 0..3 {
                    scene.served(CHAT, &story(CHAT, stream)).await?;
                }
                let metrics = scene.router.metrics().await?;
                assert!(metrics.sum("edge_router_retries_total", &["leg=\"render\""]) >= 1.0);
                scene.fleet.assert_quiescent().await;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn with_no_other_left_the_error_names_the_renderer() -> Result<()> {
    let slow = |router: RouterBuilder| router.arg("--render-timeout-s").arg("1");
    for (fault, status, code) in [
        (Fault::status(500), 502, "render_failed"),
        (Fault::close_before_headers(), 502, "render_unreachable"),
        (Fault::hang(), 504, "render_timeout"),
        (Fault::status(200).json(&json!({ "token_ids": [] })), 502, "render_failed"),
        (Fault::status(200).body("text/plain", "hello"), 502, "render_failed"),
    ] {
        for path in [RENDER, DERENDER] {
            let scene = Scene::with(1, |engine| engine, slow).await?;
            scene.renderers[0].fault(fault.clone().always().on_path(path));
            let answer = scene.router.post_json(CHAT, &story(CHAT, false)).await?;
            assert_error(&answer, status, code);
            assert!(answer.text().contains("render instance"), "{}", answer.text());
            assert_eq!(scene.legs().len(), if path == RENDER { 0 } else { 2 });
            scene.fleet.assert_quiescent().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_refused_request_is_answered_in_the_renderers_words() -> Result<()> {
    let scene = Scene::new(2).await?;
    let mut body = story(CHAT, true);
    body["temperature"] = json!(-1);
    let answer = scene.router.post_json(CHAT, &body).await?;
    let direct = edge_router_tests::client::Client::new(&scene.renderers[0].address());
    let expected = direct.post_json(RENDER, &body).await?;
    assert_eq!((answer.status, answer.json()), (400, expected.json()));
    assert_eq!(scene.legs(), Vec::<String>::new());
    assert_eq!(scene.rendered().iter().sum::<usize>(), 2, "no other is asked");
    Ok(())
}

#[tokio::test]
async fn an_engines_error_is_an_engines_error() -> Result<()> {
    let scene = Scene::new(1).await?;
    for stream in [false, true] {
        scene.fleet.decode[0].fault(Fault::status(422).on_path("/inference/v1/generate"));
        let answer = scene.router.post_json(CHAT, &story(CHAT, stream)).await?;
        assert_eq!((answer.status, &answer.json()["error"]["type"]), (422, &json!("SimulatedFault")));
    }
    // In a stream, behind what was said before.
    scene.fleet.decode[0].fault(Fault::error_after(3).on_path("/inference/v1/generate"));
    let said = scene.router.stream(CHAT, &story(CHAT, true)).await?.transcript().await?;
    assert_eq!(said.error.as_ref().map(|error| error["code"].clone()), Some(json!(500)));
    let whole = scene.fleet.baseline(CHAT, &story(CHAT, true)).await?;
    assert!(said.done && !said.text().is_empty() && whole.text().starts_with(said.text()));
    Ok(())
}

#[tokio::test]
async fn a_stream_that_no_renderer_can_turn_back_ends_with_an_error_and_stops_its_engine() -> Result<()> {
    let slow = |engine: EngineBuilder| engine.token_delay(std::time::Duration::from_millis(20));
    let scene = Scene::with(1, slow, |router| router).await?;
    let mut stream = scene.router.stream(CHAT, &story(CHAT, true)).await?;
    stream.next_event().await?;
    stream.next_event().await?;
    scene.renderers[0].kill().await;
    let mut last = None;
    while let Ok(Some(arrival)) = stream.next_event().await {
        last = Some(arrival.event);
    }
    let last = last.map(|event| event.json()).unwrap_or_default();
    assert_eq!(last["error"]["code"], "render_unreachable", "{last}");
    scene.fleet.assert_quiescent().await;
    let leg = scene.fleet.decode[0].requests().remove(0);
    assert!(leg.aborted(), "{leg:?}");
    assert_eq!(scene.router.metrics().await?.sum("edge_router_answers_broken_off_total", &[]), 1.0);
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_leaves_nothing_behind() -> Result<()> {
    for (path, stream) in [(RENDER, false), (DERENDER, false), (DERENDER, true)] {
        let scene = Scene::new(1).await?;
        scene.renderers[0].fault(Fault::hang().on_path(path));
        let (client, body) = (scene.router.client(), story(CHAT, stream));
        let asking = tokio::spawn(async move { client.stream(CHAT, &body).await?.whole().await });
        let hanging = || scene.renderers[0].seen().into_iter().find(|request| request.path == path);
        eventually("the renderer is asked", || hanging().is_some()).await?;
        asking.abort();
        eventually("the call ends", || hanging().is_some_and(|r| r.end == Some(End::Aborted))).await?;
        assert_eq!(scene.legs().len(), if path == RENDER { 0 } else { 2 });
        scene.fleet.assert_quiescent().await;
        let counted = |status: &Value| {
            let instances = status["instances"].as_array().cloned().unwrap_or_default();
            instances.iter().filter_map(|i| i["in_flight"].as_u64()).sum::<u64>()
        };
        assert_eq!(counted(&scene.router.status().await?), 0);
    }
    Ok(())
}

/// An engine is slowed down by its client also where a renderer stands in between: nothing is read ahead.
#[tokio::test]
async fn nothing_is_turned_back_that_was_not_asked_for() -> Result<()> {
    let scene = Scene::new(1).await?;
    scene.renderers[0].fault(Fault::hang().on_path(DERENDER));
    let (client, body) = (scene.router.client(), story(CHAT, true));
    let asking = tokio::spawn(async move { client.stream(CHAT, &body).await?.whole().await });
    let calls = || scene.renderers[0].seen().iter().filter(|request| request.path == DERENDER).count();
    eventually("the renderer is asked", || calls() == 1).await?;
    eventually("the engine has generated all", || scene.fleet.decode[0].running() == 0).await?;
    assert_eq!(calls(), 1, "one call at a time");
    asking.abort();
    scene.fleet.assert_quiescent().await;
    Ok(())
}
