//! The manners of the engine's HTTP server, and what it does before any token.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use edge_router_tests::client::{Client, PATIENCE};
use edge_router_tests::engine::{Engine, EngineBuilder, Fault};
use edge_router_tests::patience::eventually;
use edge_router_tests::prometheus::Samples;
use http::Request;
use http_body_util::Full;
use serde_json::json;
use tokio::time::timeout;

use super::{COMPLETIONS, completion, cut_down, story};

/// Leaves a test time to look at a long answer.
fn slow() -> EngineBuilder {
    Engine::both().token_delay(Duration::from_millis(2))
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_a_request() -> Result<()> {
    let engine = Engine::both().keep_alive(Duration::from_millis(500)).start().await?;
    let mut connection = Client::new(&engine.address()).connect().await?;
    for _ in 0..2 {
        let request = Request::get("/health").header("host", "engine").body(Full::<Bytes>::default())?;
        assert_eq!(connection.exchange(request).await?.status, 200);
    }
    connection.closed().await
}

#[tokio::test]
async fn a_busy_connection_is_not_idle() -> Result<()> {
    let quick = Engine::both().keep_alive(Duration::from_millis(1)).token_delay(Duration::from_millis(20));
    let engine = quick.start().await?;
    let body = json!({ "prompt": "slow", "max_tokens": 5, "stream": true });
    assert!(Client::new(&engine.address()).stream(COMPLETIONS, &body).await?.transcript().await?.done);
    Ok(())
}

#[tokio::test]
async fn a_key_guards_v1_alone() -> Result<()> {
    let engine = Engine::both().api_key("secret").start().await?;
    let client = Client::new(&engine.address());
    let refused = client.post_json(COMPLETIONS, &completion("hi")).await?;
    assert_eq!((refused.status, refused.text().as_str()), (401, r#"{"error":"Unauthorized"}"#));
    assert_eq!(client.get("/v1/models").await?.status, 401);
    assert_eq!(client.get("/health").await?.status, 200);
    let client = client.header("authorization", "Bearer secret");
    assert_eq!(client.post_json(COMPLETIONS, &completion("hi")).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_full_queue_is_a_503() -> Result<()> {
    let engine = slow().max_running(1).max_queued(0).start().await?;
    let client = Client::new(&engine.address());
    let endless = json!({ "prompt": "busy", "max_tokens": 30_000, "stream": true });
    let mut first = client.stream(COMPLETIONS, &endless).await?;
    first.next_event().await?;
    let refused = client.post_json(COMPLETIONS, &completion("hi")).await?;
    assert_eq!(
        (refused.status, refused.json()["error"]["type"].as_str()),
        (503, Some("ServiceUnavailableError"))
    );
    assert_eq!(engine.counters().admission_rejections, 1);
    Ok(())
}

#[tokio::test]
async fn ranks_have_engine_ids_of_their_own() -> Result<()> {
    let engine = Engine::prefill().dp_size(2).start().await?;
    let mut seen = Vec::new();
    for rank in ["0", "1"] {
        let client = Client::new(&engine.address()).header("x-data-parallel-rank", rank);
        let mut answer = client.post_json(COMPLETIONS, &cut_down(&story(1))).await?.ok()?.json();
        let params = answer["kv_transfer_params"].take();
        assert!(params["remote_engine_id"].as_str().is_some_and(|id| id.ends_with(&format!("_dp{rank}"))));
        seen.push(params["remote_port"].clone());
    }
    assert_ne!(seen[0], seen[1]);
    Ok(())
}

#[tokio::test]
async fn a_wrong_rank_is_a_400_and_in_a_stream_an_event() -> Result<()> {
    let engine = Engine::both().start().await?;
    let client = Client::new(&engine.address()).header("x-data-parallel-rank", "7");
    assert_eq!(client.post_json(COMPLETIONS, &completion("hi")).await?.status, 400);
    let stream = client.stream(COMPLETIONS, &json!({ "prompt": "hi", "stream": true })).await?;
    assert_eq!(stream.status, 200);
    let transcript = stream.transcript().await?;
    assert!(transcript.done && transcript.error.is_some_and(|error| error["code"] == 400));
    Ok(())
}

#[tokio::test]
async fn metrics_show_what_runs() -> Result<()> {
    let engine = slow().start().await?;
    let client = Client::new(&engine.address());
    let endless = json!({ "prompt": story(1), "max_tokens": 30_000, "stream": true });
    let mut stream = client.stream(COMPLETIONS, &endless).await?;
    stream.next_event().await?;
    let samples = Samples::parse(&client.get("/metrics").await?.text());
    assert_eq!(samples.sum("vllm:num_requests_running", &[]), 1.0);
    assert!(samples.sum("vllm:kv_cache_usage_perc", &[]) > 0.0);
    assert!(samples.sum("vllm:prompt_tokens_by_source_total", &["source=\"local_compute\""]) > 0.0);
    Ok(())
}

#[tokio::test]
async fn a_killed_engine_refuses_and_comes_back_at_the_same_port() -> Result<()> {
    let engine = slow().start().await?;
    let client = Client::new(&engine.address());
    let endless = json!({ "prompt": "on and on", "max_tokens": 30_000, "stream": true });
    let mut stream = client.stream(COMPLETIONS, &endless).await?;
    stream.next_event().await?;
    engine.kill().await;
    let broken = async { while stream.next_event().await.is_ok_and(|event| event.is_some()) {} };
    timeout(PATIENCE, broken).await?;
    assert!(client.get("/health").await.is_err());
    engine.restart().await?;
    assert_eq!(client.get("/health").await?.status, 200);
    eventually("the stream is over", || engine.requests()[0].aborted()).await
}

#[tokio::test]
async fn everything_is_there_by_hand_too() -> Result<()> {
    let engine = Engine::decode().start().await?;
    let client = Client::new(&engine.address());
    client.post_json("/sim/fault", &json!({ "status": { "code": 429 } })).await?.ok()?;
    assert_eq!(client.post_json(COMPLETIONS, &completion("hi")).await?.status, 429);
    let seen = client.get("/sim/requests").await?.json();
    assert_eq!(
        (&seen[0]["path"], &seen[0]["status"], &seen[0]["end"]),
        (&json!(COMPLETIONS), &json!(429), &json!("answered"))
    );
    assert_eq!(client.get("/sim/state").await?.json()["role"], "decode");
    client.post_json("/sim/reset", &json!({})).await?.ok()?;
    assert!(engine.seen().is_empty());
    assert_eq!(client.post_json("/sim/fault", &json!({ "nonsense": {} })).await?.status, 400);
    Ok(())
}

#[tokio::test]
async fn strict_mode_lists_what_prefill_should_never_see() -> Result<()> {
    let engine = Engine::prefill().start().await?;
    let client = Client::new(&engine.address());
    client.post_json(COMPLETIONS, &cut_down("hi")).await?.ok()?;
    assert!(engine.violations().is_empty());
    client.post_json(COMPLETIONS, &completion("hi")).await?.ok()?;
    assert_eq!(engine.violations().len(), 2, "{:#?}", engine.violations());
    engine.fault(Fault::hang().on_prefill());
    engine.clear_faults();
    client.post_json(COMPLETIONS, &cut_down("hi")).await?.ok()?;
    Ok(())
}
