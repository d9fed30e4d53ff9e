//! Renderers: what is passed on to them, and chats and completions that run through them on token ids.

mod failures;
mod pool;
mod through;

use anyhow::{Result, ensure};
use edge_router_tests::engine::{Engine, EngineBuilder};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::{Value, json};

use crate::load::{CHAT, COMPLETIONS};

pub(crate) const GENERATE: &str = "/inference/v1/generate";

/// Engines, renderers, and a router through which every request is rendered.
struct Scene {
    fleet: Fleet,
    renderers: Vec<Engine>,
    router: Router,
}

impl Scene {
    async fn new(renderers: usize) -> Result<Self> {
        Self::with(renderers, |engine| engine, |router| router).await
    }

    /// With all engines but the baseline and the renderers as `engine` sets them.
    async fn with(
        renderers: usize,
        engine: impl Fn(EngineBuilder) -> EngineBuilder,
        router: impl FnOnce(RouterBuilder) -> RouterBuilder,
    ) -> Result<Self> {
        let mut fleet = Fleet::start(0, 0).await?;
        fleet.prefill.push(engine(Engine::prefill()).start().await?);
        fleet.decode.push(engine(Engine::decode()).start().await?);
        let mut all = Vec::new();
        for _ in 0..renderers {
            all.push(Engine::render().start().await?);
        }
        // No probe comes in between, except where a test wants it to.
        let base = fleet.router().arg("--through-render").arg("*").arg("--access-log");
        let base = base.arg("--probe-interval-ms").arg("3600000");
        let router = router(all.iter().fold(base, RouterBuilder::render)).start().await?;
        Ok(Self { fleet, renderers: all, router })
    }

    /// A request that must be answered as one engine alone answers it, over two legs on token ids.
    async fn served(&self, path: &str, body: &Value) -> Result<()> {
        let loads = self.fleet.decode[0].counters().remote_loads;
        let stream = body["stream"] == true;
        let said = if stream {
            self.router.stream(path, body).await?.transcript().await?
        } else {
            self.router.post_json(path, body).await?.ok()?.transcript()
        };
        let expected = self.fleet.baseline(path, body).await?;
        ensure!(said.error.is_none() && said.done, "{said:?}");
        ensure!(said.choices == expected.choices, "{said:#?}\n{expected:#?}");
        for figure in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            ensure!(said.tokens(figure) == expected.tokens(figure), "{said:?}\n{expected:?}");
        }
        let prefix = if path == CHAT { "chatcmpl-" } else { "cmpl-" };
        ensure!(said.id.starts_with(prefix), "{}", said.id);
        let loaded = self.fleet.decode[0].counters().remote_loads - loads;
        ensure!(loaded == 1, "decode has fetched {loaded} KV caches");
        Ok(())
    }

    /// How often each renderer was asked, probes aside.
    fn rendered(&self) -> Vec<usize> {
        let asked = |path: &str| path.ends_with("render");
        let count = |renderer: &Engine| renderer.seen().iter().filter(|r| asked(&r.path)).count();
        self.renderers.iter().map(count).collect()
    }

    /// All paths on which engines were asked to generate.
    fn legs(&self) -> Vec<String> {
        let engines = self.fleet.prefill.iter().chain(&self.fleet.decode);
        engines.flat_map(Engine::requests).map(|request| request.path).collect()
    }
}

/// A request for `path`.
fn story(path: &str, stream: bool) -> Value {
    let mut body = json!({ "model": "sim", "max_tokens": 24, "seed": 7, "stream": stream });
    if stream {
        body["stream_options"] = json!({ "include_usage": true });
    }
    match path {
        CHAT => {
            body["messages"] = json!([{ "role": "user", "content": "tell me of the wind and the sea" }]);
        }
        _ => body["prompt"] = json!("tell me of the wind and the sea, and all of the stars"),
    }
    body
}
