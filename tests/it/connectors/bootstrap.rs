//! Mooncake's prefill engines as the router knows them by their bootstrap servers, and nothing else.

use anyhow::{Context, Result};
use edge_router_tests::engine::{Connector, Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::json;

use crate::discovery::until;
use crate::load::all_right;

struct Scene {
    fleet: Fleet,
    router: Router,
}

impl Scene {
    /// Engines whose ids the router has asked for.
    async fn new(dp_size: usize, concurrent: bool) -> Result<Self> {
        let set = |engine: EngineBuilder| engine.connector(Connector::Mooncake).dp_size(dp_size);
        let fleet = Fleet::start_with(2, 1, set).await?;
        let mut router = fleet.router().patient().policy("mooncake.wasm").policy("plain.wasm");
        router =
            router.arg("--policy-config").arg(&format!("mooncake={}", json!({ "concurrent": concurrent })));
        // A stream that has begun with no more than the role can still be made good.
        router = router.arg("--hold-opening-ms").arg("3600000");
        for prefill in &fleet.prefill {
            let server = prefill.bootstrap_address().context("it has one")?;
            router = router.arg("--mooncake-bootstrap").arg(&format!("{}={server}", prefill.address()));
        }
        let scene = Self { fleet, router: router.start().await? };
        scene.ids_are_known().await?;
        Ok(scene)
    }

    async fn ids_are_known(&self) -> Result<()> {
        until("all engine ids are known", async || {
            let status = self.router.status().await?;
            let instances = status["instances"].as_array().context("instances")?;
            let knows = |engine: &Engine| {
                instances.iter().any(|instance| {
                    let labels = &instance["labels"];
                    let ids = engine.engine_ids();
                    let last = format!("engine_id_dp{}", ids.len() - 1);
                    let last = if ids.len() == 1 { "engine_id" } else { &last };
                    instance["address"] == engine.address()
                        && instance["state"] == "healthy"
                        && labels["engine_id"] == *ids[0]
                        && Some(&labels[last]) == ids.last().map(|id| json!(id)).as_ref()
                })
            };
            Ok(self.fleet.prefill.iter().all(knows))
        })
        .await
    }

    /// KV caches that decode has loaded, of so many requests.
    async fn loads(&self, requests: usize) -> Result<u64> {
        let before = self.fleet.decode[0].counters().remote_loads;
        all_right(&self.fleet, &self.router, requests, 4).await?;
        Ok(self.fleet.decode[0].counters().remote_loads - before)
    }
}

#[tokio::test]
async fn a_prefill_engine_needs_nothing_but_its_server() -> Result<()> {
    for concurrent in [false, true] {
        for dp_size in [1, 2] {
            let scene = Scene::new(dp_size, concurrent).await?;
            assert_eq!(scene.loads(16).await?, 16, "{concurrent} {dp_size}");
            scene.fleet.assert_quiescent().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn one_that_restarts_costs_no_request_and_is_found_again() -> Result<()> {
    for concurrent in [false, true] {
        let mut scene = Scene::new(1, concurrent).await?;
        // What the old ids are told of stays on the new process for eight minutes, and so do decode's blocks.
        scene.fleet.expect_pinned_some();
        scene.fleet.expect_leaked_some();
        assert_eq!(scene.loads(4).await?, 4);
        for prefill in &scene.fleet.prefill {
            prefill.restart().await?;
        }
        scene.loads(8).await?;
        scene.ids_are_known().await?;
        assert_eq!(scene.loads(8).await?, 8, "{concurrent}");
    }
    Ok(())
}
