//! What is passed on to renderers, and who serves it where there are none.

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::router::Router;

use super::*;
use crate::failures::assert_error;

/// A request for each path that needs no model.
fn questions() -> Vec<(&'static str, Value)> {
    let chat = json!({ "model": "sim", "max_tokens": 3, "messages": [{ "role": "user", "content": "hi" }] });
    let text = json!({ "model": "sim", "prompt": "tell me", "input": "tell me" });
    let answer = json!({ "request_id": "x", "choices": [{ "index": 0, "token_ids": [300, 301] }] });
    vec![
        ("/v1/chat/completions/render", chat.clone()),
        ("/v1/messages/render", chat),
        ("/v1/completions/render", text.clone()),
        ("/v1/responses/render", text.clone()),
        ("/v1/chat/completions/derender", json!({ "model": "sim", "generate_response": answer })),
        ("/v1/completions/derender", json!({ "model": "sim", "generate_responses": [answer] })),
        ("/tokenize", text),
        ("/detokenize", json!({ "tokens": [300, 301] })),
    ]
}

fn asked(engine: &Engine) -> Vec<String> {
    let questions = questions();
    let known = |path: &String| questions.iter().any(|(question, _)| question == path);
    engine.seen().into_iter().map(|request| request.path).filter(known).collect()
}

/// Without what differs from one answer to the next.
fn stable(mut answer: Value) -> Value {
    let strip = |answer: &mut Value| {
        if let Some(object) = answer.as_object_mut() {
            ["created", "request_id", "id"].iter().for_each(|name| drop(object.remove(*name)));
        }
    };
    answer.as_array_mut().into_iter().flatten().for_each(strip);
    strip(&mut answer);
    answer
}

#[tokio::test]
async fn what_needs_no_model_goes_to_a_renderer_if_there_is_one() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let renderer = Engine::render().start().await?;
    let alone = fleet.router().start().await?;
    let pooled = fleet.router().render(&renderer).start().await?;
    let direct = Client::new(&renderer.address());
    for (path, body) in questions() {
        let expected = stable(direct.post_json(path, &body).await?.ok()?.json());
        for router in [&alone, &pooled] {
            assert_eq!(stable(router.post_json(path, &body).await?.ok()?.json()), expected, "{path}");
        }
    }
    let paths: Vec<_> = questions().into_iter().map(|(path, _)| path).collect();
    assert_eq!(asked(&fleet.decode[0]), paths);
    assert_eq!(asked(&renderer).len(), 2 * paths.len());
    assert_eq!(fleet.prefill[0].requests().len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_pool_without_a_healthy_renderer_is_a_503_and_no_fallback() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let renderer = Engine::render().start().await?;
    let router = fleet.router().render(&renderer).arg("--through-render").arg("*");
    let router = router.arg("--probe-interval-ms").arg("50").start().await?;
    renderer.kill().await;
    router.wait_for_log("instance can't be used").await?;
    for (path, body) in questions().into_iter().chain([(CHAT, story(CHAT, false))]) {
        let answer = router.post_json(path, &body).await?;
        assert_error(&answer, 503, "no_render_instance");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(answer.text().contains("no render instance is available: none is healthy"), "{path}");
    }
    assert_eq!(router.get("/readyz").await?.status, 200, "renderers are no part of readiness");
    renderer.restart().await?;
    router.wait_for_log_times("instance is healthy", 4).await?;
    router.post_json(CHAT, &story(CHAT, false)).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn renderers_alone_serve_nothing_but_are_shown_and_drained() -> Result<()> {
    let renderer = Engine::render().start().await?;
    let router = Router::builder().render(&renderer).env("ADMIN_API_KEY", "key").no_wait().start().await?;
    router.wait_for_log("instance is healthy").await?;
    assert_eq!(router.get("/readyz").await?.status, 503);
    let status = router.status().await?;
    assert_eq!((&status["prefill_node_count"], &status["decode_node_count"]), (&json!(0), &json!(0)));
    assert_eq!(status["instances"][0]["role"], "render");
    let (path, question) = questions().remove(0);
    router.post_json(path, &question).await?.ok()?;
    assert!(router.metrics().await?.sum("edge_router_instance_healthy", &["role=\"render\""]) >= 0.0);

    let admin = router.client().header("x-api-key", "key");
    let instance = json!({ "type": "render", "instance": renderer.address() });
    admin.post_json("/instances/drain", &instance).await?.ok()?;
    assert_error(&router.post_json(path, &question).await?, 503, "no_render_instance");
    admin.post_json("/instances/resume", &instance).await?.ok()?;
    router.post_json(path, &question).await?.ok()?;
    admin.post_json("/instances/remove", &instance).await?.ok()?;
    admin.post_json("/instances/add", &instance).await?.ok()?;
    router.wait_for_log_times("instance is healthy", 2).await?;
    router.post_json(path, &question).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_refusal_to_deal_in_token_ids_comes_with_a_remedy() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| engine.scale_out(false)).await?;
    let router = fleet.router().start().await?;
    let direct = Client::new(&fleet.decode[0].address());
    let ids = json!({ "model": "sim", "token_ids": [300], "sampling_params": { "max_tokens": 2 } });
    let questions = questions().into_iter().filter(|(path, _)| !path.ends_with("tokenize"));
    for (path, body) in questions.chain([(GENERATE, ids)]) {
        let answer = router.post_json(path, &body).await?;
        assert_eq!(answer.status, 403, "{path}");
        let (mut ours, theirs) = (answer.json(), direct.post_json(path, &body).await?.json());
        let message = ours["error"]["message"].take();
        let remedy = message.as_str().and_then(|m| m.strip_prefix(theirs["error"]["message"].as_str()?));
        let remedy = remedy.unwrap_or_default();
        assert!(remedy.contains("--enable-scale-out"), "{message}");
        assert_eq!(remedy.contains("--tokens-only"), path == GENERATE);
        assert_eq!(remedy.contains("--render"), path != GENERATE);
        ours["error"]["message"] = theirs["error"]["message"].clone();
        assert_eq!(ours, theirs);
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_that_has_begun_outlives_the_draining_of_the_only_renderer() -> Result<()> {
    let slow = std::time::Duration::from_millis(20);
    let fleet = Fleet::start_with(1, 1, |engine| engine.token_delay(slow)).await?;
    let renderer = Engine::render().start().await?;
    let router = fleet.router().render(&renderer).arg("--through-render").arg("*");
    let router = router.env("ADMIN_API_KEY", "k").start().await?;
    let body = story(CHAT, true);
    let mut stream = router.stream(CHAT, &body).await?;
    stream.next_bytes().await?;
    let drained = json!({ "instance": renderer.address() });
    router.client().header("x-api-key", "k").post_json("/instances/drain", &drained).await?.ok()?;
    let mut rest = String::new();
    while let Some(bytes) = stream.next_bytes().await? {
        rest.push_str(std::str::from_utf8(&bytes)?);
    }
    assert!(rest.ends_with("data: [DONE]\n\n") && !rest.contains("\"error\""), "{rest}");
    assert_error(&router.post_json(CHAT, &body).await?, 503, "no_render_instance");
    fleet.assert_quiescent().await;
    Ok(())
}
