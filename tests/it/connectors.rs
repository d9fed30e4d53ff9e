//! KV connectors as policies, in front of simulated engines: those speak NIXL's pull, and one without a connector
//! stands for engines that find the KV cache by the prompt.

mod bootstrap;
mod ranks;
mod registration;

use anyhow::Result;
use edge_router_tests::engine::{Engine, EngineBuilder, Fault, Request};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};

use crate::load::{CHAT, all_right, chat};

const MORIIO: [&str; 2] = ["moriio.wasm", "plain.wasm"];

/// The bodies of the requests that asked this engine to generate.
fn bodies(engine: &Engine) -> Vec<Value> {
    engine.requests().iter().filter(|request| request.generates()).map(|request| request.json()).collect()
}

/// The one header of that name of each of these requests.
fn headers(engine: &Engine, name: &str) -> Vec<String> {
    let requests = engine.requests();
    let header = |request: &Request| {
        let values: Vec<_> = request.headers.iter().filter(|(header, _)| header == name).collect();
        let [(_, value)] = values[..] else { panic!("{values:?}") };
        value.clone()
    };
    requests.iter().filter(|request| request.generates()).map(header).collect()
}

#[tokio::test]
async fn nixl_hands_the_kv_cache_over_behind_a_scheduling_policy() -> Result<()> {
    let fleet = Fleet::start(2, 2).await?;
    let router = fleet.router().patient().policy("cache_aware.wasm").policy("nixl.wasm").start().await?;
    all_right(&fleet, &router, 24, 4).await?;
    let loads: u64 = fleet.decode.iter().map(|engine| engine.counters().remote_loads).sum();
    assert_eq!(loads, 24);
    assert_eq!(router.metrics().await?.sum("edge_router_policy_faults_total", &[]), 0.0);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn prefills_token_ids_reach_decode_and_its_cached_tokens_the_client() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, EngineBuilder::prompt_tokens_details).await?;
    let config = r#"nixl={"reuse_token_ids": true}"#;
    let router =
        fleet.router().patient().policy("nixl.wasm").arg("--policy-config").arg(config).start().await?;
    for turn in 0..2 {
        let answer = router.post_json(CHAT, &chat(1)).await?.ok()?;
        assert_eq!(answer.transcript().text(), fleet.baseline(CHAT, &chat(1)).await?.text());
        let cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        // What prefill itself found cached, not the whole prompt that decode fetched.
        assert_eq!(cached.is_some_and(|tokens| tokens > 0), turn == 1, "{}", answer.text());
        assert!(answer.json()["prompt_token_ids"].is_null(), "the client did not ask for them");
    }
    assert_eq!(bodies(&fleet.prefill[0])[0]["return_token_ids"], true);
    let decoded = &bodies(&fleet.decode[0])[0];
    assert!(decoded.get("return_token_ids").is_none());
    let ids = decoded["kv_transfer_params"]["prompt_token_ids"].as_array().map(Vec::len);
    assert!(ids.is_some_and(|ids| ids > 10), "{decoded}");
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_policy_that_is_handed_nothing_for_decode_is_a_fallback() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().patient().policy("nixl.wasm").start().await?;
    fleet.prefill[0].fault(Fault::kv_params(Value::Null).on_prefill());
    let answer = router.post_json(CHAT, &chat(1)).await?.ok()?;
    assert_eq!(answer.transcript().text(), fleet.baseline(CHAT, &chat(1)).await?.text());
    let metrics = router.metrics().await?;
    assert_eq!(metrics.sum("edge_router_fallbacks_total", &["kind=\"no_handle\""]), 1.0);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn nixl_push_leaves_answers_of_pull_to_the_built_in_and_says_so() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().patient().policy("nixl_push.wasm").start().await?;
    all_right(&fleet, &router, 4, 2).await?;
    assert_eq!(fleet.decode[0].counters().remote_loads, 4);
    assert_eq!(router.metrics().await?.sum("edge_router_policy_faults_total", &["kind=\"error\""]), 4.0);
    assert!(router.log().iter().any(|line| line.contains("run the policy `nixl`")), "{:?}", router.log());
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn plain_legs_exchange_nothing() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, EngineBuilder::without_connector).await?;
    // Strict mode misses NIXL's question to prefill.
    fleet.expect_violations();
    let router = fleet.router().patient().policy("plain.wasm").start().await?;
    all_right(&fleet, &router, 8, 2).await?;
    let (prefill, decode) = (bodies(&fleet.prefill[0]), bodies(&fleet.decode[0]));
    assert_eq!((prefill.len(), decode.len()), (8, 8));
    for body in prefill.iter().chain(&decode) {
        assert!(body.get("kv_transfer_params").is_none(), "{body}");
    }
    assert!(prefill.iter().all(|body| body["max_tokens"] == 1 && body["stream"] == false));
    assert!(decode.iter().all(|body| body["max_tokens"] == 6));
    // It is meant so, and no fallback.
    assert_eq!(router.metrics().await?.sum("edge_router_fallbacks_total", &[]), 0.0);
    fleet.assert_quiescent().await;
    Ok(())
}

/// A router with these policies, whose prefill and decode instances have these labels.
async fn labelled(fleet: &Fleet, policies: &[&str], prefill: &str, decode: &str) -> Result<Router> {
    let instance = |role: &str, engine: &Engine, labels: &str| {
        format!(
            "[[instance]]\nrole = \"{role}\"\naddress = \"{}\"\nlabels = {{ {labels} }}\n",
            engine.address()
        )
    };
    let prefills = fleet.prefill.iter().map(|engine| instance("prefill", engine, prefill));
    let decodes = fleet.decode.iter().map(|engine| instance("decode", engine, decode));
    // Probed once; then their health is up to the requests.
    let toml: String =
        std::iter::once("probe_interval_ms = 3600000\n".into()).chain(prefills).chain(decodes).collect();
    let router = Router::builder().config_toml(&toml).patient();
    let router = policies.iter().fold(router, |router, policy| router.policy(policy));
    if !policies.contains(&MORIIO[0]) {
        return router.start().await;
    }
    router.arg("--policy-config").arg(r#"moriio={"address_by_request_id": true}"#).start().await
}

#[tokio::test]
async fn moriio_tells_prefill_who_comes_and_both_legs_one_transfer() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    // The engines speak NIXL: they wonder about MoRIIO's addresses, and find their own keys in what is handed on.
    fleet.expect_violations();
    let labels = |port: u16| {
        format!("transfer_mode = \"READ\", zmq_address = \"host:10.9.9.9,handshake:{port},notify:{port}\"")
    };
    let router = labelled(&fleet, &MORIIO, &labels(1), &labels(2)).await?;
    all_right(&fleet, &router, 6, 1).await?;
    assert_eq!(fleet.decode[0].counters().remote_loads, 6);
    for engine in [&fleet.prefill[0], &fleet.decode[0]] {
        for id in headers(engine, "x-request-id") {
            assert!(id.starts_with("___prefill_addr_host:10.9.9.9"), "{id}");
        }
    }
    let mut transfers = Vec::new();
    for (prefill, decode) in bodies(&fleet.prefill[0]).iter().zip(bodies(&fleet.decode[0])) {
        let (asked, told) = (&prefill["kv_transfer_params"], &decode["kv_transfer_params"]);
        assert_eq!((&asked["remote_host"], &asked["remote_handshake_port"]), (&json!("10.9.9.9"), &json!(2)));
        assert_eq!(told["remote_handshake_port"], 1);
        assert_eq!(prefill["min_tokens"], 1);
        assert_eq!(asked["transfer_id"], told["transfer_id"]);
        assert!(!transfers.contains(&told["transfer_id"]));
        transfers.push(told["transfer_id"].clone());
    }
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_label_that_moriio_misses_is_named_and_costs_no_request() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    fleet.expect_violations();
    let router = labelled(&fleet, &MORIIO, "zone = \"a\"", "zone = \"a\"").await?;
    all_right(&fleet, &router, 4, 1).await?;
    let named = format!("instance {} has no label `handshake_port`", fleet.prefill[0].address());
    assert!(router.log().iter().any(|line| line.contains(&named)), "{:?}", router.log());
    for body in bodies(&fleet.prefill[0]).iter().chain(&bodies(&fleet.decode[0])) {
        assert!(body.get("kv_transfer_params").is_none(), "{body}");
    }
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn mooncake_names_one_transfer_and_engine_to_both_legs() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, EngineBuilder::without_connector).await?;
    fleet.expect_violations();
    let labels = r#"bootstrap_address = "127.0.0.1:1", engine_id = "e0""#;
    let router = labelled(&fleet, &["mooncake.wasm", "plain.wasm"], labels, "zone = \"a\"").await?;
    all_right(&fleet, &router, 6, 1).await?;
    let (prefill, decode) = (bodies(&fleet.prefill[0]), bodies(&fleet.decode[0]));
    let mut transfers = Vec::new();
    for (prefill, decode) in prefill.iter().zip(&decode) {
        let (asked, told) = (&prefill["kv_transfer_params"], &decode["kv_transfer_params"]);
        let id = &asked["transfer_id"];
        assert_eq!(
            *asked,
            json!({ "do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id })
        );
        let expected = json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "remote_bootstrap_addr": "http://127.0.0.1:1",
            "remote_engine_id": "e0",
            "transfer_id": id,
        });
        assert_eq!((told, &prefill["min_tokens"]), (&expected, &json!(1)));
        assert!(id.is_string() && !transfers.contains(&id));
        transfers.push(id);
    }
    assert_eq!(transfers.len(), 6);
    assert_eq!(headers(&fleet.prefill[0], "x-data-parallel-rank"), ["0"; 6]);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn p2p_nccl_names_both_peers_in_one_request_id() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, EngineBuilder::without_connector).await?;
    fleet.expect_violations();
    let labels = |port: u16| format!("zmq_address = \"10.9.9.9:{port}\"");
    let router = labelled(&fleet, &["p2p_nccl.wasm"], &labels(1), &labels(2)).await?;
    all_right(&fleet, &router, 6, 1).await?;
    let ids = headers(&fleet.prefill[0], "x-request-id");
    assert_eq!(ids, headers(&fleet.decode[0], "x-request-id"));
    for id in &ids {
        assert!(id.starts_with("___prefill_addr_10.9.9.9:1___decode_addr_10.9.9.9:2_"), "{id}");
        assert_eq!(ids.iter().filter(|other| *other == id).count(), 1);
    }
    for body in bodies(&fleet.prefill[0]).iter().chain(&bodies(&fleet.decode[0])) {
        assert!(body.get("kv_transfer_params").is_none(), "{body}");
    }
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn no_decode_instance_waits_for_what_p2p_nccl_sent_to_another() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 2, EngineBuilder::without_connector).await?;
    fleet.expect_violations();
    let label = r#"zmq_address = "10.9.9.9:1""#;
    let router = labelled(&fleet, &["p2p_nccl.wasm"], label, label).await?;
    fleet.decode[0].kill().await;
    all_right(&fleet, &router, 4, 1).await?;
    // A decode instance that is given up for another costs a fresh prefill: the KV cache went to the first.
    let (prefill, decode) =
        (headers(&fleet.prefill[0], "x-request-id"), headers(&fleet.decode[1], "x-request-id"));
    assert!(prefill.len() > 4 && decode.len() == 4, "{prefill:?} {decode:?}");
    assert!(decode.iter().all(|id| prefill.contains(id)), "{prefill:?} {decode:?}");
    Ok(())
}
