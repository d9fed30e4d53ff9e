//! MoRIIO's engines as the router finds them by their registration, and nothing else.

use anyhow::{Context, Result};
use edge_router_tests::engine::{Connector, Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};

use crate::discovery::{consists_of, until};
use crate::load::{CHAT, COMPLETIONS, all_right, chat};

/// Engines that have registered, with what they were set up with.
struct Scene {
    fleet: Fleet,
    router: Router,
    /// Where they register.
    port: String,
    connector: Connector,
}

impl Scene {
    async fn new(
        connector: Connector,
        config: &Value,
        set: impl Fn(EngineBuilder) -> EngineBuilder,
    ) -> Result<Self> {
        let router = Router::builder().patient().policy("moriio.wasm").policy("plain.wasm");
        let router = router.arg("--policy-config").arg(&format!("moriio={config}"));
        let router = router.arg("--registration-listen").arg("127.0.0.1:0").no_wait().start().await?;
        let line = router.wait_for_log("engines may register on ").await?;
        let port = line.rsplit_once(' ').context("no address")?.1.to_owned();
        let registered = |engine: EngineBuilder| engine.connector(connector.clone()).register_with(&port);
        let fleet = Fleet::start_with(1, 1, |engine| set(registered(engine))).await?;
        consists_of(&router, [&fleet.prefill[0].address(), &fleet.decode[0].address()]).await?;
        Ok(Self { fleet, router, port, connector })
    }

    /// What `/status` says of prefill's address.
    async fn prefill(&self) -> Result<Value> {
        let (prefill, decode) = (self.fleet.prefill[0].address(), self.fleet.decode[0].address());
        let instances = consists_of(&self.router, [&prefill, &decode]).await?;
        instances.into_iter().find(|instance| instance["address"] == *prefill).context("it is there")
    }

    async fn loads(&self, requests: usize) -> Result<u64> {
        let before = self.fleet.decode[0].counters().remote_loads;
        all_right(&self.fleet, &self.router, requests, 4).await?;
        Ok(self.fleet.decode[0].counters().remote_loads - before)
    }
}

const MODES: [(Connector, bool); 3] =
    [(Connector::MoriioRead, false), (Connector::MoriioWrite, false), (Connector::MoriioWrite, true)];

#[tokio::test]
async fn engines_that_register_hand_over_in_either_mode() -> Result<()> {
    for (connector, concurrent) in MODES {
        let scene = Scene::new(connector, &json!({ "concurrent": concurrent }), |engine| engine).await?;
        assert_eq!(scene.loads(12).await?, 12);
        let metrics = scene.router.metrics().await?;
        assert_eq!(metrics.sum("edge_router_policy_faults_total", &[]), 0.0, "{:?}", scene.router.log());
    }
    Ok(())
}

#[tokio::test]
async fn their_ranks_are_known_too() -> Result<()> {
    for (connector, concurrent) in MODES {
        let writes = matches!(connector, Connector::MoriioWrite);
        let scene =
            Scene::new(connector, &json!({ "concurrent": concurrent }), |engine| engine.dp_size(2)).await?;
        assert_eq!(scene.prefill().await?["dp_size"], 2);
        assert_eq!(scene.loads(40).await?, 40);
        let mut ranks: Vec<_> = scene.fleet.prefill[0]
            .requests()
            .iter()
            .map(|leg| leg.header("x-data-parallel-rank").map(str::to_owned))
            .collect();
        ranks.sort();
        ranks.dedup();
        // Decode that reads is told by prefill itself where to.
        let expected = if writes { vec![Some("0".to_owned()), Some("1".to_owned())] } else { vec![None] };
        assert_eq!(ranks, expected);
    }
    Ok(())
}

#[tokio::test]
async fn an_engine_that_comes_back_at_other_ports_is_another_one() -> Result<()> {
    for (connector, concurrent) in MODES {
        let mut scene = Scene::new(connector, &json!({ "concurrent": concurrent }), |engine| engine).await?;
        assert_eq!(scene.loads(4).await?, 4);
        let before = scene.prefill().await?;
        scene.fleet.prefill[0].kill().await;
        let (_, port) = before["address"].as_str().and_then(|at| at.rsplit_once(':')).context("a port")?;
        let again = Engine::prefill().connector(scene.connector.clone()).port(port.parse()?);
        scene.fleet.prefill.push(again.register_with(&scene.port).start().await?);
        until("it is another", async || {
            let now = scene.prefill().await?;
            Ok(now["id"] != before["id"] && now["labels"] != before["labels"])
        })
        .await?;
        assert_eq!(scene.loads(4).await?, 4);
        assert_eq!(scene.fleet.prefill[1].counters().pinned, 4);
    }
    Ok(())
}

#[tokio::test]
async fn addresses_in_the_request_id_stay_between_router_and_engines() -> Result<()> {
    for (connector, concurrent) in MODES {
        let config = json!({ "address_by_request_id": true, "concurrent": concurrent });
        let scene = Scene::new(connector, &config, |engine| engine).await?;
        for turn in 0..2 {
            // Streamed, then whole; the client panics at an id that names addresses.
            let answer = scene.router.post_json(CHAT, &chat(turn)).await?.ok()?;
            let theirs = scene.fleet.decode[0].requests().pop().context("it was asked")?;
            let id = theirs.header("x-request-id").context("an id")?.to_owned();
            assert!(id.starts_with("___prefill_addr_host:127.0.0.1,handshake:"), "{id}");
            assert!(!answer.text().contains("handshake"), "{}", answer.text());
            assert!(answer.text().contains("\"chatcmpl-"), "{}", answer.text());
        }
        let body = json!({ "prompt": "hello", "max_tokens": 3, "stream": true });
        let answer = scene.router.stream(COMPLETIONS, &body).await?.transcript().await?;
        assert!(answer.id.starts_with("cmpl-") && !answer.id.contains("addr"), "{}", answer.id);
        assert_eq!(scene.fleet.decode[0].counters().remote_loads, 3);
    }
    Ok(())
}
