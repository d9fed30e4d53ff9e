//! `--mooncake-bootstrap`: engine ids are asked for.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use edge_router_tests::engine::Fault;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{consists_of, problem_of, until};
use crate::load::{CHAT, all_right, chat};

/// A bootstrap server that answers `GET /query` with what it holds.
async fn bootstrap(answer: Arc<Mutex<Value>>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let body = answer.lock().expect("unpoisoned").to_string();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let status = if request[..read].starts_with(b"GET /query ") { "200 OK" } else { "404 Not Found" };
            let head =
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    Ok(address)
}

fn ranks(ids: &[&str]) -> Value {
    ids.iter().enumerate().map(|(rank, id)| (rank.to_string(), json!({ "engine_id": id }))).collect()
}

#[tokio::test]
async fn an_engine_that_restarts_is_known_by_its_new_ids() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let answer = Arc::new(Mutex::new(ranks(&["a0", "a1"])));
    let server = bootstrap(Arc::clone(&answer)).await?;
    let (prefill, decode) = (fleet.prefill[0].address(), fleet.decode[0].address());
    let router: Router =
        fleet.router().arg("--mooncake-bootstrap").arg(&format!("{prefill}={server}")).start().await?;
    let now = async || {
        let instances = consists_of(&router, [&prefill, &decode]).await?;
        instances.into_iter().find(|i| i["address"] == *prefill).context("it is there")
    };
    let labels = json!({
        "bootstrap_address": server, "engine_id": "a0", "engine_id_dp1": "a1", "kv_lease_s": "480"
    });
    until("its ids are known", async || Ok(now().await?["labels"] == labels)).await?;
    let known = now().await?;
    assert_eq!((&known["dp_size"], &known["sources"]), (&json!(2), &json!(["config"])));

    *answer.lock().expect("unpoisoned") = json!({ "1": { "engine_id": "half" } });
    let problem = problem_of(&router, "mooncake bootstrap").await?;
    assert!(problem.contains("does not know all ranks"), "{problem}");
    assert_eq!(now().await?["id"], known["id"], "what was known stays");

    *answer.lock().expect("unpoisoned") = ranks(&["b0", "b1"]);
    until("it has new ids", async || Ok(now().await?["labels"]["engine_id_dp1"] == "b1")).await?;
    assert_ne!(now().await?["id"], known["id"]);
    all_right(&fleet, &router, 4, 2).await
}

#[tokio::test]
async fn ids_are_asked_for_again_when_decode_could_not_fetch_a_kv_cache() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    // What the failed legs leave on prefill stays there until its lease ends.
    fleet.expect_pinned(2);
    let answer = Arc::new(Mutex::new(ranks(&["a0"])));
    let server = bootstrap(Arc::clone(&answer)).await?;
    let (prefill, decode) = (fleet.prefill[0].address(), fleet.decode[0].address());
    let router = fleet.router().arg("--mooncake-bootstrap").arg(&format!("{prefill}={server}"));
    let router = router.arg("--log").arg("info,edge_router::discovery=debug").start().await?;
    let engine_id = async |id: &str| {
        let instances = consists_of(&router, [&prefill, &decode]).await?;
        Ok(instances.iter().any(|i| i["address"] == *prefill && i["labels"]["engine_id"] == *id))
    };
    until("its id is known", async || engine_id("a0").await).await?;

    *answer.lock().expect("unpoisoned") = ranks(&["b0"]);
    for round in 1..=2 {
        fleet.decode[0].fault(Fault::status(500).on_decode());
        router.post_json(CHAT, &chat(1)).await?.ok()?;
        router.wait_for_log_times("asking for engine ids again", round).await?;
    }
    until("it has a new id", async || engine_id("b0").await).await?;
    all_right(&fleet, &router, 4, 2).await
}
