//! Prefill reads back what decode kept of a conversation's last turn: `--kv-readback`, between engines with NIXL's pull
//! that do so.

mod attached;
mod chats;
mod fails;
mod lost;
mod never;

use anyhow::{Context, Result, ensure};
use edge_router_tests::client::{Answer, Client};
use edge_router_tests::engine::{Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::{Value, json};

use crate::load::COMPLETIONS;

const GENERATE: &str = "/inference/v1/generate";
const ANSWERED: u32 = 12;

/// Two prefill engines, which take turns: the second has not seen a conversation's first turn.
struct Scene {
    fleet: Fleet,
    router: Router,
    /// Of one client and one conversation.
    client: Client,
}

impl Scene {
    async fn new() -> Result<Self> {
        Self::with(|router| router).await
    }

    async fn with(set: impl FnOnce(RouterBuilder) -> RouterBuilder) -> Result<Self> {
        let fleet = Fleet::start_with(2, 1, EngineBuilder::bidirectional).await?;
        let router = set(fleet.labelled_router());
        Self::of(fleet, router).await
    }

    async fn of(fleet: Fleet, router: RouterBuilder) -> Result<Self> {
        let args = ["--kv-readback", "--probe-interval-ms", "3600000", "--pool-idle-ms", "1"];
        let router = args.into_iter().fold(router, RouterBuilder::arg).start().await?;
        let client = router.client().header("x-session-id", "c1").header("authorization", "Bearer me");
        Ok(Self { fleet, router, client })
    }

    /// Asks as this client, and compares what it gets with what one engine alone says.
    async fn right(&self, client: &Client, path: &str, body: &Value) -> Result<Answer> {
        let answer = client.post_json(path, body).await?.ok()?;
        if body["stream"] == true {
            let expected = self.fleet.baseline(path, body).await?;
            let said = client_view(&answer.body);
            ensure!(said == expected.text(), "{said:?} is not {:?}", expected.text());
        } else {
            let expected = Client::new(&self.fleet.baseline.address()).post_json(path, body).await?.ok()?;
            let (said, expected) = (&answer.json()["choices"], &expected.json()["choices"]);
            ensure!(said == expected, "{said:#} is not {expected:#}");
        }
        Ok(answer)
    }

    /// The tokens that follow this prompt.
    async fn follows(&self, prompt: &[u32]) -> Result<Vec<u32>> {
        let body = json!({ "prompt": prompt, "max_tokens": ANSWERED, "return_token_ids": true });
        let baseline = Client::new(&self.fleet.baseline.address());
        ids(&baseline.post_json(COMPLETIONS, &body).await?.ok()?.json()["choices"][0]["token_ids"])
    }

    /// How many prefill legs were sent with a readback, and how many of them were carried out.
    async fn readbacks(&self) -> Result<(f64, u64)> {
        let sent = self.router.metrics().await?.sum("edge_router_readbacks_total", &[]);
        let told = self
            .fleet
            .prefill
            .iter()
            .flat_map(Engine::requests)
            .filter(|leg| leg.json()["kv_transfer_params"]["remote_block_ids"].is_array());
        ensure!(told.count() as f64 == sent, "the router counts other readbacks than engines have seen");
        Ok((sent, self.fleet.prefill.iter().map(|engine| engine.counters().remote_loads).sum()))
    }

    async fn orphans(&self) -> Result<f64> {
        Ok(self.router.metrics().await?.sum("edge_router_orphaned_handles_total", &[]))
    }
}

/// The text of a stream.
fn client_view(body: &[u8]) -> String {
    let events = edge_router_tests::sse::EventBuffer::default().push(body);
    edge_router_tests::sse::Transcript::of_events(&events).text().to_owned()
}

fn ids(list: &Value) -> Result<Vec<u32>> {
    let list = list.as_array().with_context(|| format!("no token ids: {list}"))?;
    list.iter().map(|id| Ok(u32::try_from(id.as_u64().context("no id")?)?)).collect()
}

/// The first turn: more tokens than an engine would rather compute than read.
fn opening() -> Vec<u32> {
    (300..400).collect()
}

/// The turn after the one with `prompt`, to which `said` was answered.
fn next(prompt: &[u32], said: &[u32]) -> Vec<u32> {
    [prompt, said, &[700, 701]].concat()
}

fn completion(prompt: &[u32], stream: bool) -> Value {
    json!({ "model": "sim", "prompt": prompt, "max_tokens": ANSWERED, "stream": stream })
}

fn generate(prompt: &[u32]) -> Value {
    json!({ "model": "sim", "token_ids": prompt, "sampling_params": { "max_tokens": ANSWERED } })
}
