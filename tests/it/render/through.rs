//! Chats and completions on token ids: clients see what one engine alone would have said.

use anyhow::Result;
use edge_router_tests::engine::Fault;
use edge_router_tests::router::RouterBuilder;
use serde_json::{Value, json};

use super::*;

#[tokio::test]
async fn answers_are_those_of_one_engine_and_both_legs_share_the_tokens() -> Result<()> {
    let scene = Scene::new(1).await?;
    for path in [CHAT, COMPLETIONS] {
        for stream in [false, true] {
            scene.served(path, &story(path, stream)).await?;
        }
    }
    assert_eq!(scene.legs(), [GENERATE; 8]);
    for (prefill, decode) in scene.fleet.prefill[0].requests().iter().zip(scene.fleet.decode[0].requests()) {
        assert_eq!(prefill.json()["token_ids"], decode.json()["token_ids"]);
        assert_eq!(prefill.json()["cache_salt"], decode.json()["cache_salt"]);
    }
    let log = scene.router.wait_for_log_times("render_ms=", 4).await?;
    assert!(log.contains("/v1/completions") && log.contains(&scene.renderers[0].address()), "{log}");
    let metrics = scene.router.metrics().await?;
    assert_eq!(metrics.sum("edge_router_render_duration_seconds_count", &[]), 4.0);
    // A call for each whole answer, and one for each token of the streams.
    assert_eq!(metrics.sum("edge_router_derender_duration_seconds_count", &[]), 2.0 + 48.0);
    scene.fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn engines_without_a_tokeniser_serve_text() -> Result<()> {
    let scene = Scene::with(2, EngineBuilder::tokens_only, |router| router).await?;
    for path in [CHAT, COMPLETIONS] {
        for stream in [false, true] {
            scene.served(path, &story(path, stream)).await?;
        }
    }
    let shares = scene.rendered();
    assert!(shares.iter().all(|share| *share > 20), "renderers take turns: {shares:?}");
    // What needs text goes the usual way, and is refused there.
    let mut stop = story(COMPLETIONS, false);
    stop["stop"] = json!(["sea"]);
    let answer = scene.router.post_json(COMPLETIONS, &stop).await?;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("Tokenizer not available"), "{}", answer.text());
    Ok(())
}

/// The keys of a value, sorted.
fn keys(value: &Value) -> Vec<&String> {
    value.as_object().into_iter().flat_map(|object| object.keys()).collect()
}

#[tokio::test]
async fn events_have_the_shapes_that_clients_know() -> Result<()> {
    let scene = Scene::new(1).await?;
    for path in [CHAT, COMPLETIONS] {
        for continuous in [false, true] {
            let mut body = story(path, true);
            body["stream_options"]["continuous_usage_stats"] = continuous.into();
            let through = scene.router.stream(path, &body).await?.events().await?;
            let direct = edge_router_tests::client::Client::new(&scene.fleet.baseline.address());
            let direct = direct.stream(path, &body).await?.events().await?;
            assert_eq!(through.len(), direct.len());
            let (mut ids, mut created) = (Vec::new(), Vec::new());
            for (ours, theirs) in through.iter().zip(&direct) {
                let (ours, theirs) = (ours.event.json(), theirs.event.json());
                for (ours, theirs) in [
                    (&ours["choices"][0]["delta"], &theirs["choices"][0]["delta"]),
                    (&ours["choices"][0]["text"], &theirs["choices"][0]["text"]),
                    (&ours["choices"][0]["index"], &theirs["choices"][0]["index"]),
                    (&ours["choices"][0]["finish_reason"], &theirs["choices"][0]["finish_reason"]),
                    (&ours["object"], &theirs["object"]),
                    (&ours["model"], &theirs["model"]),
                ] {
                    assert_eq!(ours, theirs);
                }
                let counted = |usage: &Value| usage["completion_tokens"].as_u64();
                if !theirs["choices"][0]["delta"]["role"].is_string() {
                    assert_eq!(counted(&ours["usage"]), counted(&theirs["usage"]));
                    assert_eq!(ours.get("usage").is_some(), theirs.get("usage").is_some());
                }
                assert!(keys(&ours).iter().all(|key| !key.ends_with("transfer_params")));
                ids.push(ours["id"].clone());
                created.push(ours["created"].clone());
            }
            assert!(through.last().is_some_and(|last| last.event.is_done()));
            ids.pop();
            created.pop();
            ids.dedup();
            created.dedup();
            assert_eq!((ids.len(), created.len()), (1, 1), "{ids:?} {created:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn several_continuations_run_on_one_leg() -> Result<()> {
    let scene = Scene::new(1).await?;
    for path in [CHAT, COMPLETIONS] {
        for stream in [false, true] {
            let mut body = story(path, stream);
            body["n"] = json!(3);
            let said = if stream {
                scene.router.stream(path, &body).await?.transcript().await?
            } else {
                scene.router.post_json(path, &body).await?.ok()?.transcript()
            };
            let expected = scene.fleet.baseline(path, &body).await?;
            assert_eq!((&said.choices, said.done), (&expected.choices, true));
            assert_eq!(said.tokens("completion_tokens"), Some(72));
        }
    }
    assert_eq!(scene.fleet.prefill[0].requests().len(), 0);
    assert_eq!(scene.fleet.decode[0].requests().len(), 4);
    Ok(())
}

#[tokio::test]
async fn what_token_ids_can_not_answer_goes_the_usual_way() -> Result<()> {
    let scene = Scene::new(1).await?;
    for (name, value) in [
        ("stop", json!(["sea"])),
        ("logprobs", json!(2)),
        ("echo", json!(true)),
        ("return_token_ids", json!(true)),
        ("prompt_logprobs", json!(1)),
        ("prompt", json!(["one", "two"])),
    ] {
        let mut body = story(COMPLETIONS, false);
        body[name] = value;
        let said = scene.router.post_json(COMPLETIONS, &body).await?.ok()?.transcript();
        assert_eq!(said.choices, scene.fleet.baseline(COMPLETIONS, &body).await?.choices, "{name}");
    }
    assert_eq!(scene.rendered(), [0]);
    assert!(scene.legs().iter().all(|path| path == COMPLETIONS));
    Ok(())
}

#[tokio::test]
async fn only_the_models_that_were_named_go_through() -> Result<()> {
    let other = |router: RouterBuilder| router.env("EDGE_ROUTER_THROUGH_RENDER", "x");
    let scene = Scene::with(1, |engine| engine, other).await?;
    // The command line wins.
    scene.served(CHAT, &story(CHAT, false)).await?;
    assert_eq!(scene.rendered(), [2]);

    let router = scene.fleet.router().render(&scene.renderers[0]);
    let router = router.arg("--through-render").arg("other,another").start().await?;
    router.post_json(CHAT, &story(CHAT, false)).await?.ok()?;
    assert_eq!(scene.rendered(), [2]);
    assert_eq!(scene.legs()[..], [GENERATE, CHAT, GENERATE, CHAT]);
    Ok(())
}

/// vLLM's renderers leave a limit of 16 out, its default; an engine would go on to the end of the context.
#[tokio::test]
async fn a_limit_that_a_renderer_leaves_out_still_holds() -> Result<()> {
    let scene = Scene::new(1).await?;
    for path in [CHAT, COMPLETIONS] {
        let mut body = story(path, false);
        body["max_tokens"] = json!(16);
        scene.served(path, &body).await?;
    }
    let mut silent = story(COMPLETIONS, false);
    silent.as_object_mut().unwrap().remove("max_tokens");
    scene.served(COMPLETIONS, &silent).await
}

/// Engines show nothing of the token that ends an answer, and renderers would.
#[tokio::test]
async fn a_stop_token_is_no_part_of_an_answer() -> Result<()> {
    let scene = Scene::new(1).await?;
    const WORD: u32 = 65_900;
    for path in [CHAT, COMPLETIONS] {
        for stream in [false, true] {
            for min_tokens in [0, 4] {
                let mut body = story(path, stream);
                body["logit_bias"] = json!({ WORD.to_string(): 100 });
                body["stop_token_ids"] = json!([WORD]);
                body["min_tokens"] = json!(min_tokens);
                scene.served(path, &body).await?;
                let said = scene.fleet.baseline(path, &body).await?;
                assert_eq!(said.text().is_empty(), min_tokens == 0, "{said:?}");
                assert_eq!(said.choices[&0].finish_reason.as_deref(), Some("stop"));
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn media_always_come_with_what_was_made_of_them() -> Result<()> {
    let scene = Scene::new(1).await?;
    let mut body = story(CHAT, false);
    body["mm_payload"] = json!("none");
    body["kv_transfer_params"] = json!({ "do_remote_decode": true });
    body["messages"][0]["content"] = json!([
        { "type": "text", "text": "what is this?" },
        { "type": "image_url", "image_url": { "url": "data:image/png;base64,aGVsbG8=" } },
    ]);
    scene.served(CHAT, &body).await?;
    let leg = scene.fleet.decode[0].requests()[0].json();
    assert_eq!(leg["features"]["kwargs_data"]["image"][0], "aGk=");
    for request in scene.renderers[0].seen().iter().filter(|r| r.path.ends_with("/render")) {
        assert!(request.json().get("mm_payload").is_none());
        assert!(request.json().get("kv_transfer_params").is_none());
    }
    Ok(())
}

#[tokio::test]
async fn prefixes_of_token_ids_are_found_again() -> Result<()> {
    let mut fleet = Fleet::start(3, 1).await?;
    let renderer = Engine::render().start().await?;
    let router = fleet.router().render(&renderer).patient().policy("cache_aware.wasm");
    let router = router.arg("--through-render").arg("sim").start().await?;
    let mut messages = vec![json!({ "role": "user", "content": "Tell me of the sea. ".repeat(40) })];
    for turn in 0..5 {
        let body = json!({ "model": "sim", "messages": messages, "max_tokens": 4 });
        let said = router.post_json(CHAT, &body).await?.ok()?.transcript();
        assert_eq!(said.text(), fleet.baseline(CHAT, &body).await?.text());
        messages.push(json!({ "role": "assistant", "content": said.text() }));
        messages.push(json!({ "role": "user", "content": format!("Go on with part {turn}. ") }));
    }
    let homes: Vec<_> = fleet.prefill.drain(..).filter(|prefill| !prefill.requests().is_empty()).collect();
    assert_eq!(homes.len(), 1, "the conversation stays where its cache is");
    let counted = homes[0].counters();
    assert!(counted.prompt_tokens_cached > counted.prompt_tokens_computed, "{counted:?}");
    Ok(())
}

/// A renderer that has a parser needs all that was said before with each event; one that has none needs little.
#[tokio::test]
async fn a_renderer_is_sent_what_it_needs_and_no_more() -> Result<()> {
    for parser in [true, false] {
        let fleet = Fleet::start(1, 1).await?;
        let renderer = Engine::render();
        let renderer = if parser { renderer.with_parser() } else { renderer }.start().await?;
        let router = fleet.router().render(&renderer).arg("--through-render").arg("*").start().await?;
        let body = story(CHAT, true);
        let said = router.stream(CHAT, &body).await?.transcript().await?;
        assert_eq!((said.text(), said.done), (fleet.baseline(CHAT, &body).await?.text(), true));

        let calls: Vec<Value> = renderer
            .seen()
            .iter()
            .filter(|request| request.path.ends_with("/derender"))
            .map(|request| request.json())
            .collect();
        assert_eq!(calls.len(), 24);
        assert_eq!(calls[0]["chat_request"]["messages"], body["messages"]);
        assert!(calls[0]["prompt_token_ids"].is_array());
        for call in &calls[1..] {
            assert_eq!(call["chat_request"]["messages"] == body["messages"], parser);
            assert_eq!(call["prompt_token_ids"].is_array(), parser);
            assert_eq!(call["chat_request"]["seed"], 7);
        }
    }
    Ok(())
}

#[tokio::test]
async fn comments_pass_and_frames_may_be_cut_anywhere() -> Result<()> {
    let scene = Scene::new(1).await?;
    for fault in [Fault::one_byte_writes(), Fault::keep_alive_comments(), Fault::reframe(3)] {
        for path in [CHAT, COMPLETIONS] {
            scene.fleet.decode[0].fault(fault.clone().on_decode());
            scene.served(path, &story(path, true)).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_decode_engine_can_render_too() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().render(&fleet.decode[0]).arg("--through-render").arg("*").start().await?;
    let body = story(CHAT, true);
    let said = router.stream(CHAT, &body).await?.transcript().await?;
    assert_eq!(said.text(), fleet.baseline(CHAT, &body).await?.text());
    assert_eq!(fleet.decode[0].counters().remote_loads, 1);
    let status = router.status().await?;
    assert_eq!(status["decode_node_count"], 1);
    assert_eq!(status["instances"].as_array().map(Vec::len), Some(2));
    Ok(())
}
