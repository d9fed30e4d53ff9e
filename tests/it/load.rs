//! Requests at once, each of which must be answered as one engine alone would.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A chat that says something; `turn` makes it another one.
pub(crate) fn chat(turn: usize) -> Value {
    json!({
        "model": "sim",
        "messages": [{ "role": "user", "content": format!("tell me story number {turn} of the sea and the wind") }],
        "max_tokens": 6,
        "stream": turn.is_multiple_of(2),
    })
}

/// Sends `requests` chats through the router, `at_once` at a time; all must be right.
pub(crate) async fn all_right(fleet: &Fleet, router: &Router, requests: usize, at_once: usize) -> Result<()> {
    let mut expected = Vec::new();
    for turn in 0..8 {
        expected.push(fleet.baseline(CHAT, &chat(turn)).await?.text().to_owned());
    }
    let (expected, next) = (Arc::new(expected), Arc::new(AtomicUsize::new(0)));
    let mut workers = JoinSet::new();
    for _ in 0..at_once {
        let (client, expected, next) = (router.client(), Arc::clone(&expected), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                if turn >= requests {
                    return Ok(());
                }
                let said = client.stream(CHAT, &chat(turn % 8)).await?;
                ensure!(said.status == 200, "status {}", said.status);
                let said = if turn.is_multiple_of(2) {
                    said.transcript().await?
                } else {
                    said.whole().await?.transcript()
                };
                ensure!(said.text() == expected[turn % 8], "{said:?}");
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}

/// Right answers for as long as `work` takes; how many there were.
pub(crate) async fn all_right_during(
    fleet: &Fleet,
    router: &Router,
    work: impl Future<Output = Result<()>>,
) -> Result<usize> {
    let done = AtomicBool::new(false);
    let mut rounds = 0;
    let load = async {
        while !done.load(Ordering::Relaxed) {
            all_right(fleet, router, 16, 4).await?;
            rounds += 1;
        }
        anyhow::Ok(())
    };
    let work = async {
        let result = work.await;
        done.store(true, Ordering::Relaxed);
        result
    };
    let (load, work) = tokio::join!(load, work);
    load?;
    work?;
    Ok(rounds * 16)
}
