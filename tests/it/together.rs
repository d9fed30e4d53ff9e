//! Both legs at once, with each connector whose decode leg needs nothing of prefill's answer: `{"concurrent": true}`.

mod client;
mod decode;
mod one_by_one;
mod prefill;

use anyhow::{Result, ensure};
use edge_router_tests::client::Client;
use edge_router_tests::engine::{EngineBuilder, Fault, Request};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::router::{Router, RouterBuilder};
use edge_router_tests::sse::Transcript;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::load::{CHAT, COMPLETIONS};
use crate::matrix::System;

const SYSTEMS: [System; 3] =
    [System::NixlPushTogether, System::MoriioWriteTogether, System::MooncakeTogether];

/// Each of them, with a whole answer and with a stream.
fn kinds() -> impl Iterator<Item = (System, bool)> {
    SYSTEMS.into_iter().flat_map(|system| [(system, false), (system, true)])
}

/// Engines behind a router that probes them once and then leaves their health to the requests.
struct Scene {
    fleet: Fleet,
    router: Router,
}

/// A request on its way, in a task of its own. Aborted, its client leaves.
type Asked = JoinHandle<Result<Transcript>>;

impl Scene {
    async fn new(system: System, pairs: usize) -> Result<Self> {
        Self::with(system, pairs, |engine| engine).await
    }

    async fn with(
        system: System,
        pairs: usize,
        set: impl Fn(EngineBuilder) -> EngineBuilder,
    ) -> Result<Self> {
        let connector = system.connector();
        let mut fleet =
            Fleet::start_with(pairs, pairs, |engine| set(engine.connector(connector.clone()))).await?;
        // Those of decode requests that are given up while they wait for a transfer.
        fleet.expect_leaked_some();
        let router = by_requests(system.router(&fleet)).start().await?;
        Ok(Self { fleet, router })
    }

    fn ask(&self, stream: bool) -> Asked {
        ask(self.router.client(), story(stream))
    }

    /// Both legs of the first request wait: prefill is held, and decode waits for it.
    async fn both_wait(&self) -> Result<()> {
        let (prefill, decode) = (&self.fleet.prefill[0], &self.fleet.decode[0]);
        eventually("both legs wait", || prefill.held() == 1 && decode.hanging() == 1).await
    }

    /// Whether the request is answered as one engine alone would.
    async fn right(&self, asked: Asked, stream: bool) -> Result<()> {
        same(&self.fleet, asked, &story(stream)).await
    }

    /// A counter of the router: its name without prefix and ending, and a label.
    async fn count(&self, counter: &str, label: &str) -> Result<f64> {
        let labels: &[&str] = if label.is_empty() { &[] } else { &[label] };
        Ok(self.router.metrics().await?.sum(&format!("edge_router_{counter}_total"), labels))
    }

    /// The decode legs, once the engine of the first one has noticed its end.
    async fn let_go(&self) -> Result<Vec<Request>> {
        let ended = || self.decode_legs().first().is_some_and(|leg| leg.end.is_some());
        eventually("decode is let go", ended).await?;
        Ok(self.decode_legs())
    }

    /// The decode legs of all engines, oldest first.
    fn decode_legs(&self) -> Vec<Request> {
        let mut legs: Vec<_> = self.fleet.decode.iter().flat_map(|engine| engine.requests()).collect();
        legs.sort_by_key(|leg| leg.at);
        legs
    }
}

/// No probe in between, and no connection that is idle when its engine is killed: whether that has seen a request on it
/// would be open.
fn by_requests(router: RouterBuilder) -> RouterBuilder {
    let args = ["--probe-interval-ms", "3600000", "--pool-idle-ms", "1"];
    args.into_iter().fold(router, RouterBuilder::arg)
}

/// Where to ask, and what.
type Story = (&'static str, Value);

fn story(stream: bool) -> Story {
    let text = "tell me of the wind, and of the sea that it goes over";
    if stream {
        let messages = json!([{ "role": "user", "content": text }]);
        let options = json!({ "include_usage": true });
        return (
            CHAT,
            json!({ "model": "sim", "messages": messages, "max_tokens": 6, "seed": 3, "stream": true, "stream_options": options }),
        );
    }
    (COMPLETIONS, json!({ "model": "sim", "prompt": text, "max_tokens": 6, "seed": 3 }))
}

fn ask(client: Client, (path, body): Story) -> Asked {
    tokio::spawn(async move {
        let answer = client.stream(path, &body).await?;
        match answer.status {
            200 if body["stream"] == true => answer.transcript().await,
            _ => Ok(answer.whole().await?.ok()?.transcript()),
        }
    })
}

async fn same(fleet: &Fleet, asked: Asked, (path, body): &Story) -> Result<()> {
    let said = asked.await??;
    let expected = fleet.baseline(path, body).await?;
    ensure!(said.error.is_none() && said.done, "{said:?}");
    ensure!(said.text() == expected.text() && said.usage == expected.usage, "{said:?}\n{expected:?}");
    Ok(())
}

/// What joins the legs of one attempt: the request id, and the transfer's, where the connector has one.
fn ids(leg: &Request) -> (String, Value) {
    let id = leg.header("x-request-id").expect("each leg has an id").to_owned();
    (id, leg.json()["kv_transfer_params"]["transfer_id"].clone())
}

fn has_params(leg: &Request) -> bool {
    leg.json()["kv_transfer_params"].is_object()
}

#[tokio::test]
async fn both_legs_are_under_way_before_either_has_answered() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 1).await?;
        let (prefill, decode) = (&scene.fleet.prefill[0], &scene.fleet.decode[0]);
        prefill.fault(Fault::hold());
        let asked = scene.ask(stream);
        scene.both_wait().await?;
        prefill.clear_faults();
        scene.right(asked, stream).await?;
        assert_eq!((prefill.requests().len(), decode.requests().len()), (1, 1), "{system:?}");
        assert_eq!(ids(&prefill.requests()[0]), ids(&decode.requests()[0]), "{system:?}");
        assert_eq!(decode.counters().remote_loads, 1, "{system:?}");
        assert_eq!(scene.count("fallbacks", "").await? + scene.count("retries", "").await?, 0.0);
    }
    Ok(())
}

#[tokio::test]
async fn what_decode_says_reaches_the_client_at_once() -> Result<()> {
    for system in SYSTEMS {
        let scene = Scene::new(system, 1).await?;
        // The role and two tokens; nothing would push out what is held back.
        scene.fleet.decode[0].fault(Fault::stall_after(3));
        let (path, body) = story(true);
        let mut answer = scene.router.stream(path, &body).await?;
        for _ in 0..3 {
            assert!(answer.next_event().await?.is_some(), "{system:?}");
        }
        drop(answer);
        eventually("decode is let go", || scene.fleet.decode[0].requests()[0].aborted()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn each_of_many_at_once_gets_its_own_kv_cache() -> Result<()> {
    for system in SYSTEMS {
        let scene = Scene::new(system, 2).await?;
        crate::load::all_right(&scene.fleet, &scene.router, 32, 8).await?;
        let loads: u64 = scene.fleet.decode.iter().map(|engine| engine.counters().remote_loads).sum();
        assert_eq!(loads, 32, "{system:?}");
        let legs = scene.decode_legs();
        let fresh: std::collections::HashSet<_> = legs.iter().map(|leg| ids(leg).0).collect();
        assert_eq!(fresh.len(), 32, "{system:?}");
    }
    Ok(())
}
