//! Handoffs as they should be, and what pins and frees prefill's blocks.

use std::time::Duration;

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::engine::{Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, ask, completion, handed, prefill, right, story, text, without};

/// One request at a time, slow enough to keep others waiting.
fn busy(engine: EngineBuilder) -> EngineBuilder {
    engine.max_running(1).token_delay(Duration::from_millis(2))
}

#[tokio::test]
async fn a_handoff_says_what_one_engine_says() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let params = prefill(&fleet.prefill[0], &story(1)).await?;
    assert_eq!(fleet.prefill[0].pinned(), 1);
    assert!(fleet.prefill[0].free_blocks() < fleet.prefill[0].total_blocks());
    assert_eq!(text(&fleet.decode[0], &handed(&story(1), &params)).await?, right(&fleet, &story(1)).await?);
    let counters = fleet.decode[0].counters();
    assert_eq!((counters.remote_loads, counters.prompt_tokens_computed), (1, 0));
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn chats_are_handed_over_too() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let chat = json!({ "messages": [{ "role": "user", "content": story(2) }], "max_tokens": 12 });
    let mut cut_down = chat.clone();
    cut_down["max_tokens"] = json!(1);
    cut_down["kv_transfer_params"] = json!({ "do_remote_decode": true });
    let client = Client::new(&fleet.prefill[0].address());
    let params = client.post_json(CHAT, &cut_down).await?.ok()?.json()["kv_transfer_params"].take();
    let mut streamed = chat.clone();
    streamed["stream"] = json!(true);
    streamed["kv_transfer_params"] = params;
    let stream = Client::new(&fleet.decode[0].address()).stream(CHAT, &streamed).await?;
    let transcript = stream.transcript().await?;
    assert!(transcript.done);
    assert_eq!(transcript.text(), fleet.baseline(CHAT, &chat).await?.text());
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn falsy_params_mean_a_local_prefill() -> Result<()> {
    let fleet = Fleet::start(0, 1).await?;
    for params in [Value::Null, json!({}), json!({ "do_remote_prefill": false })] {
        let said = text(&fleet.decode[0], &handed(&story(3), &params)).await?;
        assert_eq!(said, right(&fleet, &story(3)).await?, "{params}");
    }
    assert_eq!(fleet.decode[0].counters().local_prefills, 3);
    Ok(())
}

#[tokio::test]
async fn an_unread_handoff_expires() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, |engine| engine.time_scale(0.01)).await?;
    let params = prefill(&fleet.prefill[0], &story(4)).await?;
    eventually("the lease ends", || fleet.prefill[0].pinned() == 0).await?;
    assert_eq!(fleet.prefill[0].free_blocks(), fleet.prefill[0].total_blocks());
    // The blocks still hold what they held, so a late reader is lucky; prefill counts it all the same.
    assert_eq!(text(&fleet.decode[0], &handed(&story(4), &params)).await?, right(&fleet, &story(4)).await?);
    let late = || fleet.prefill[0].counters().notifications_after_expiry;
    assert_eq!(late(), 1);
    fleet.expect_expired(1);
    assert!(fleet.quiescent().await.is_err(), "the fleet objects to the late read");
    fleet.expect_late_reads(1);
    Ok(())
}

#[tokio::test]
async fn heartbeats_keep_a_waiting_handoff_alive() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| busy(engine).time_scale(0.05)).await?;
    let (prefill_engine, decode) = (&fleet.prefill[0], &fleet.decode[0]);
    let long = json!({ "prompt": "busy", "max_tokens": 30_000, "stream": true });
    let client = Client::new(&decode.address());
    let mut first = client.stream(COMPLETIONS, &long).await?;
    first.next_event().await?;
    let params = prefill(prefill_engine, &story(5)).await?;
    let body = handed(&story(5), &params);
    let waiting = ask(decode, &body);
    let release = async {
        // Eight heartbeats take longer than the lease.
        eventually("heartbeats arrive", || prefill_engine.counters().heartbeats >= 8).await?;
        assert_eq!((prefill_engine.pinned(), prefill_engine.counters().kv_expired), (1, 0));
        drop(first);
        anyhow::Ok(())
    };
    let (answer, released) = tokio::join!(waiting, release);
    released?;
    assert_eq!(answer?.ok()?.transcript().text(), right(&fleet, &story(5)).await?);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn without_tp_size_there_are_no_heartbeats() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, |engine| busy(engine).time_scale(0.02)).await?;
    let client = Client::new(&fleet.decode[0].address());
    let long = json!({ "prompt": "busy", "max_tokens": 30_000, "stream": true });
    let mut first = client.stream(COMPLETIONS, &long).await?;
    first.next_event().await?;
    let params = without(&prefill(&fleet.prefill[0], &story(6)).await?, "tp_size");
    let body = handed(&story(6), &params);
    let waiting = client.post_json(COMPLETIONS, &body);
    tokio::select! {
        _ = waiting => panic!("answered while another one runs"),
        expired = eventually("the lease ends", || fleet.prefill[0].counters().kv_expired == 1) => expired?,
    }
    assert_eq!(fleet.prefill[0].counters().heartbeats, 0);
    fleet.expect_expired(1);
    // Decode gives the handoff back when its client leaves, too late.
    fleet.expect_late_reads(1);
    Ok(())
}

#[tokio::test]
async fn a_refusal_by_decode_frees_prefill() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let params = prefill(&fleet.prefill[0], &story(7)).await?;
    let mut body = handed(&story(7), &params);
    body["max_tokens"] = json!("many");
    assert_eq!(ask(&fleet.decode[0], &body).await?.status, 400);
    assert_eq!(fleet.prefill[0].pinned(), 1, "what validation refuses, the engine never sees");
    body = handed(&story(7), &params);
    body["model"] = json!("another");
    assert_eq!(ask(&fleet.decode[0], &body).await?.status, 404);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn an_unknown_request_id_reads_right_and_frees_nothing() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let params = prefill(&fleet.prefill[0], &story(8)).await?;
    let params = super::with(&params, "remote_request_id", json!("cmpl-unknown-0-00000000"));
    assert_eq!(text(&fleet.decode[0], &handed(&story(8), &params)).await?, right(&fleet, &story(8)).await?);
    fleet.expect_pinned(1);
    assert!(fleet.quiescent().await.is_err(), "prefill has counted a notification for nobody");
    fleet.expect_late_reads(1);
    Ok(())
}

#[tokio::test]
async fn asking_decode_for_a_handoff_pins_its_blocks() -> Result<()> {
    let mut fleet = Fleet::start(0, 1).await?;
    fleet.expect_violations();
    fleet.expect_pinned(1);
    let mut body = completion(&story(9));
    body["kv_transfer_params"] = json!({ "do_remote_decode": true });
    assert_eq!(ask(&fleet.decode[0], &body).await?.json()["kv_transfer_params"]["do_remote_prefill"], true);
    assert_eq!(fleet.decode[0].pinned(), 1);
    assert_eq!(fleet.decode[0].violations().len(), 1);
    Ok(())
}

#[tokio::test]
async fn an_engine_without_connector_ignores_a_handoff() -> Result<()> {
    let mut fleet = Fleet::start(1, 0).await?;
    let plain = Engine::decode().without_connector().start().await?;
    let params = prefill(&fleet.prefill[0], &story(10)).await?;
    assert_eq!(text(&plain, &handed(&story(10), &params)).await?, right(&fleet, &story(10)).await?);
    assert_eq!((plain.counters().local_prefills, fleet.prefill[0].pinned()), (1, 1));
    fleet.expect_pinned(1);
    fleet.assert_quiescent().await;
    Ok(())
}
