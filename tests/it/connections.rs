//! Connections to engines: used again, never a moment too late, and never holding anything back.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::load::{CHAT, COMPLETIONS, chat};

#[tokio::test]
async fn connections_are_used_again() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--probe-interval-ms").arg("3600000").start().await?;
    for turn in 0..20 {
        router.stream(CHAT, &chat(turn)).await?.whole().await?.ok()?;
    }
    for engine in [&fleet.prefill[0], &fleet.decode[0]] {
        let used: BTreeSet<_> = engine.requests().iter().map(|request| request.connection).collect();
        // One of the requests', and one that a probe may have left.
        assert!(used.len() <= 2, "{} connections for 20 requests, one after the other", used.len());
        assert_eq!(engine.requests().len(), 20);
    }
    Ok(())
}

#[tokio::test]
async fn an_aborted_leg_takes_its_connection_with_it() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--probe-interval-ms").arg("3600000").start().await?;
    router.post_json(CHAT, &chat(1)).await?.ok()?;
    fleet.decode[0].fault(Fault::stall_after(1).on_decode());
    let mut stream = router.stream(CHAT, &chat(0)).await?;
    stream.next_event().await?;
    drop(stream);
    let decode = &fleet.decode[0];
    eventually("decode is aborted", || decode.requests()[1].aborted()).await?;
    router.post_json(CHAT, &chat(1)).await?.ok()?;
    let connection = |turn: usize| decode.requests()[turn].connection;
    assert_ne!(connection(2), connection(1));
    Ok(())
}

/// Engines close idle connections at 300 ms, and the router 50 ms before: requests come at all moments around that.
#[tokio::test]
async fn connections_that_engines_close_cost_no_request() -> Result<()> {
    const CLIENTS: u64 = 6;
    const ROUNDS: u64 = 7;
    let fleet = Fleet::start_with(1, 1, |engine| engine.keep_alive(Duration::from_millis(300))).await?;
    let router = fleet.router().arg("--pool-idle-ms").arg("250").start().await?;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let client = router.client();
        clients.spawn(async move {
            for round in 0..ROUNDS {
                sleep(Duration::from_millis(230 + (number * 37 + round * 53) % 80)).await;
                let answer = client.stream(CHAT, &chat((number + round) as usize)).await?.whole().await?;
                ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    let retries = router.metrics().await?.sum("edge_router_retries_total", &[]);
    let generated = |engine: &Engine| engine.requests().len() as f64;
    assert_eq!(generated(&fleet.decode[0]), (CLIENTS * ROUNDS) as f64);
    assert_eq!(generated(&fleet.prefill[0]), (CLIENTS * ROUNDS) as f64 + retries);
    assert_eq!(router.metrics().await?.sum("edge_router_instance_failures", &[]), 0.0);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn the_first_event_needs_no_second_to_be_seen() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().patient().policy("cache_aware.wasm").start().await?;
    for path in [CHAT, COMPLETIONS] {
        fleet.decode[0].fault(Fault::stall_after(1).on_decode());
        let mut body = chat(0);
        body["prompt"] = "hello".into();
        if path == COMPLETIONS {
            body.as_object_mut().expect("object").remove("messages");
        }
        let mut stream = router.stream(path, &body).await?;
        assert_eq!(stream.status, 200);
        assert!(stream.next_event().await?.is_some(), "held back");
        assert!(!fleet.decode[0].requests().last().expect("asked").aborted());
    }
    Ok(())
}

#[tokio::test]
async fn the_head_of_a_stream_needs_no_event_to_be_seen() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    fleet.decode[0].fault(Fault::stall_after(0).on_decode());
    let stream = router.stream(CHAT, &chat(0)).await?;
    assert_eq!(
        (stream.status, &stream.headers["content-type"]),
        (200, &"text/event-stream; charset=utf-8".parse()?)
    );
    Ok(())
}
