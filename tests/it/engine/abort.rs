//! A client that goes away: what each engine lets go, and when.

use std::time::Duration;

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::engine::{Engine, EngineBuilder, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::json;

use super::{COMPLETIONS, ask, cut_down, handed, prefill, story};

/// Leaves a test time to interfere with a long answer.
fn slow(engine: EngineBuilder) -> EngineBuilder {
    engine.token_delay(Duration::from_millis(2))
}

/// Long enough for a test to interfere; nothing waits for its end.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_dropped_stream_frees_decode() -> Result<()> {
    let fleet = Fleet::start_with(0, 1, slow).await?;
    let endless = json!({ "prompt": story(1), "max_tokens": 30_000, "stream": true });
    let mut stream = Client::new(&fleet.decode[0].address()).stream(COMPLETIONS, &endless).await?;
    stream.next_event().await?;
    assert_eq!(fleet.decode[0].running(), 1);
    drop(stream);
    fleet.assert_quiescent().await;
    eventually("the request is over", || fleet.decode[0].requests()[0].aborted()).await?;
    assert_eq!(fleet.decode[0].counters().aborted, 1);
    Ok(())
}

#[tokio::test]
async fn a_dropped_prefill_pins_nothing() -> Result<()> {
    let fleet = Fleet::start_with(1, 0, |engine| engine.prefill_per_1k(LONG)).await?;
    let engine = &fleet.prefill[0];
    let body = cut_down(&story(1));
    let request = ask(engine, &body);
    tokio::select! {
        _ = request => panic!("answered"),
        runs = eventually("the prefill runs", || engine.running() == 1) => runs?,
    }
    fleet.assert_quiescent().await;
    assert_eq!(engine.counters().pinned, 0);
    eventually("the request is over", || engine.requests()[0].aborted()).await
}

#[tokio::test]
async fn a_waiting_handoff_is_given_back() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| slow(engine).max_running(1)).await?;
    let decode = &fleet.decode[0];
    let endless = json!({ "prompt": "busy", "max_tokens": 30_000, "stream": true });
    let mut first = Client::new(&decode.address()).stream(COMPLETIONS, &endless).await?;
    first.next_event().await?;
    let body = handed(&story(1), &prefill(&fleet.prefill[0], &story(1)).await?);
    let request = ask(decode, &body);
    tokio::select! {
        _ = request => panic!("answered"),
        waits = eventually("it waits", || decode.waiting() == 1) => waits?,
    }
    eventually("prefill is free", || fleet.prefill[0].pinned() == 0).await?;
    assert_eq!(fleet.prefill[0].counters().completed, 1);
    drop(first);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_killed_decode_gives_nothing_back() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, |engine| slow(engine).max_running(1)).await?;
    let decode = &fleet.decode[0];
    let endless = json!({ "prompt": "busy", "max_tokens": 30_000, "stream": true });
    let mut first = Client::new(&decode.address()).stream(COMPLETIONS, &endless).await?;
    first.next_event().await?;
    let body = handed(&story(1), &prefill(&fleet.prefill[0], &story(1)).await?);
    let kill = async {
        eventually("it waits", || decode.waiting() == 1).await?;
        decode.kill().await;
        anyhow::Ok(())
    };
    let (answer, killed) = tokio::join!(ask(decode, &body), kill);
    killed?;
    assert!(answer.is_err(), "the connection breaks");
    fleet.expect_pinned(1);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_read_that_has_begun_goes_on() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let (from, decode) = (&fleet.prefill[0], &fleet.decode[0]);
    let body = handed(&story(1), &prefill(from, &story(1)).await?);
    from.fault(Fault::slow_read(Duration::from_secs(1)));
    let request = ask(decode, &body);
    tokio::select! {
        _ = request => panic!("answered"),
        runs = eventually("the read has begun", || decode.running() == 1) => runs?,
    }
    eventually("decode sees the abort", || decode.requests()[0].aborted()).await?;
    assert!(decode.free_blocks() < decode.total_blocks(), "the blocks are held until the read is over");
    fleet.assert_quiescent().await;
    assert_eq!((decode.counters().remote_loads, from.counters().completed), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_queue_goes_on_when_the_first_in_line_leaves() -> Result<()> {
    let engine = slow(Engine::both().blocks(16)).start().await?;
    let client = Client::new(&engine.address());
    let endless = json!({ "prompt": "busy", "max_tokens": 200, "stream": true });
    let mut first = client.stream(COMPLETIONS, &endless).await?;
    first.next_event().await?;
    // Needs all blocks, so it can run only when nothing else does.
    let big = json!({ "prompt": vec![300; 16 * 16], "max_tokens": 1 });
    let small = json!({ "prompt": "small", "max_tokens": 1 });
    let last = {
        let blocked = client.post_json(COMPLETIONS, &big);
        tokio::pin!(blocked);
        tokio::select! {
            _ = blocked.as_mut() => panic!("answered"),
            waits = eventually("it waits", || engine.waiting() == 1) => waits?,
        }
        let mut last = Box::pin(client.post_json(COMPLETIONS, &small));
        tokio::select! {
            _ = last.as_mut() => panic!("overtook the first in line"),
            waits = eventually("it waits too", || engine.waiting() == 2) => waits?,
        }
        last
    };
    assert_eq!(last.await?.status, 200);
    Ok(())
}
