//! Policies whose KV transfer params an engine would die of, or wait for good: the router does not send them.

use anyhow::{Result, ensure};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Map, Value, json};

use crate::load::COMPLETIONS;
use crate::matrix::System;
use crate::policies::test_policy;

/// Engines behind a policy that makes what the client says it should, before the one that knows better.
struct Scene {
    fleet: Fleet,
    router: Router,
    asked: u32,
}

impl Scene {
    async fn new(system: System, hook: &str) -> Result<Self> {
        let connector = system.connector();
        let mut fleet = Fleet::start_with(1, 1, |engine| engine.connector(connector.clone())).await?;
        // Some connectors' KV caches can't be given back.
        fleet.expect_pinned_some();
        let config = json!({ "hook": hook, "fault": "params" });
        let router = system.router_behind(&fleet, &test_policy("faulty").display().to_string());
        let router = router.arg("--policy-config").arg(&format!("faulty={config}")).start().await?;
        Ok(Self { fleet, router, asked: 0 })
    }

    async fn sent(&self) -> Result<f64> {
        Ok(self.router.metrics().await?.sum("edge_router_fallbacks_total", &["kind=\"bad_handle\""]))
    }

    /// Whether these params are kept from the engine, and the answer is right all the same.
    async fn refuses(&mut self, params: &Value) -> Result<()> {
        self.asked += 1;
        let prompt = format!("tell me story number {} of the sea", self.asked);
        let mut body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 6 });
        let expected = self.fleet.baseline(COMPLETIONS, &body).await?;
        body["x_params"] = params.clone();
        let before = self.sent().await?;
        let answer = self.router.post_json(COMPLETIONS, &body).await?;
        ensure!(answer.status == 200, "{params}: {} {}", answer.status, answer.text());
        ensure!(answer.transcript().text() == expected.text(), "{params}: {}", answer.text());
        ensure!(self.sent().await? == before + 1.0, "{params} was not refused");
        Ok(())
    }

    async fn refuses_all(&mut self, all: &[Value]) -> Result<()> {
        for params in all {
            self.refuses(params).await?;
        }
        let lines = self.router.log().iter().filter(|line| line.contains("KV transfer params")).count();
        ensure!(lines == 1, "{lines} lines say so:\n{}", self.router.log().join("\n"));
        Ok(())
    }
}

/// Without each of these keys, and with a null for each of those.
fn spoilt(whole: &Value, missing: &[&str], null: &[&str]) -> Vec<Value> {
    let map = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut params = whole.as_object().cloned().unwrap_or_default();
        change(&mut params);
        Value::from(params)
    };
    let missing = missing.iter().map(|key| map(&|params| drop(params.remove(*key))));
    let null = null.iter().map(|key| map(&|params| drop(params.insert((*key).to_owned(), Value::Null))));
    missing.chain(null).collect()
}

/// What no decode engine may get, whatever its connector.
fn crossed() -> Vec<Value> {
    vec![
        json!({ "do_remote_decode": true }),
        json!({ "do_remote_decode": true, "do_remote_prefill": true, "transfer_id": "tx" }),
        json!({ "do_remote_prefill": true }),
        json!("text"),
        json!([{ "do_remote_prefill": true }]),
    ]
}

fn nixl(mode: &str) -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]], "remote_engine_id": "e",
        "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 9, "tp_size": 1, "transfer_mode": mode,
    })
}

fn moriio(block_ids: &Value) -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "transfer_id": "tx", "remote_engine_id": "e",
        "remote_block_ids": block_ids, "remote_host": "127.0.0.1", "remote_handshake_port": 9, "remote_notify_port": 9,
    })
}

fn mooncake() -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "transfer_id": "tx", "remote_engine_id": "e",
        "remote_bootstrap_addr": "http://127.0.0.1:9",
    })
}

const NIXL: [&str; 4] = ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"];
const ADDRESS: [&str; 3] = ["remote_host", "remote_handshake_port", "remote_notify_port"];

#[tokio::test]
async fn nixl_decode_is_not_sent_half_a_handle() -> Result<()> {
    let mut lethal = spoilt(&nixl("pull"), &NIXL, &NIXL);
    lethal.extend(spoilt(&nixl("pull"), &["remote_block_ids"], &["remote_block_ids"]));
    lethal.extend(crossed());
    Scene::new(System::NixlPull, "merge_kv_params").await?.refuses_all(&lethal).await
}

#[tokio::test]
async fn push_decode_is_not_sent_half_a_handle() -> Result<()> {
    let mut lethal = spoilt(&nixl("push"), &NIXL, &NIXL);
    lethal.extend(spoilt(&nixl("push"), &["tp_size"], &["tp_size"]));
    lethal.extend(crossed());
    Scene::new(System::NixlPush, "merge_kv_params").await?.refuses_all(&lethal).await
}

#[tokio::test]
async fn moriio_decode_is_not_sent_half_a_handle() -> Result<()> {
    for (system, block_ids) in [(System::MoriioRead, json!([[1]])), (System::MoriioWrite, json!(null))] {
        let whole = moriio(&block_ids);
        let mut lethal =
            spoilt(&whole, &["transfer_id", "remote_engine_id", "remote_block_ids"], &["transfer_id"]);
        if system == System::MoriioRead {
            lethal.extend(spoilt(&whole, &[], &["remote_block_ids"]));
        }
        lethal.extend(spoilt(&whole, &ADDRESS, &ADDRESS));
        lethal.extend(crossed());
        Scene::new(system, "merge_kv_params").await?.refuses_all(&lethal).await?;
    }
    Ok(())
}

#[tokio::test]
async fn mooncake_decode_is_not_sent_half_a_handle() -> Result<()> {
    let keys = ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"];
    let mut lethal = spoilt(&mooncake(), &keys, &keys);
    lethal.extend(crossed());
    Scene::new(System::Mooncake, "merge_kv_params").await?.refuses_all(&lethal).await
}

#[tokio::test]
async fn no_prefill_is_asked_to_fetch() -> Result<()> {
    for system in [System::NixlPull, System::NixlPush, System::MoriioRead, System::Mooncake] {
        let lethal = [
            json!({ "do_remote_prefill": true, "do_remote_decode": true }),
            json!({ "do_remote_decode": true, "do_remote_prefill": false, "remote_block_ids": [[1]] }),
            nixl("pull"),
            nixl("push"),
            moriio(&json!([[1]])),
            mooncake(),
            json!([1]),
        ];
        let mut scene = Scene::new(system, "rewrite_prefill").await?;
        scene.refuses_all(&lethal).await?;
        assert_eq!(scene.fleet.prefill[0].requests().len(), 0, "{system:?}");
    }
    Ok(())
}

#[tokio::test]
async fn moriio_prefill_is_told_who_comes() -> Result<()> {
    for system in [System::MoriioRead, System::MoriioWrite] {
        let whole = json!({
            "do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "tx", "remote_engine_id": null,
            "remote_block_ids": null, "remote_host": "127.0.0.1", "remote_handshake_port": 9, "remote_notify_port": 9,
        });
        let mut lethal =
            spoilt(&whole, &["transfer_id", "remote_engine_id", "remote_block_ids"], &["transfer_id"]);
        lethal.extend(spoilt(&whole, &ADDRESS, &ADDRESS));
        // The way of NIXL.
        lethal.push(json!({ "do_remote_decode": true, "do_remote_prefill": false }));
        Scene::new(system, "rewrite_prefill").await?.refuses_all(&lethal).await?;
    }
    Ok(())
}

#[tokio::test]
async fn nor_is_any_of_it_sent_ahead() -> Result<()> {
    for (system, half) in [
        (System::NixlPushTogether, spoilt(&nixl("push"), &["remote_port"], &[])),
        (System::MoriioWriteTogether, spoilt(&moriio(&Value::Null), &["remote_engine_id"], &["remote_host"])),
        (System::MooncakeTogether, spoilt(&mooncake(), &["transfer_id"], &[])),
    ] {
        let mut lethal = half;
        lethal.extend(crossed());
        Scene::new(system, "merge_kv_params").await?.refuses_all(&lethal).await?;
    }
    Ok(())
}
