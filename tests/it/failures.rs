//! Engines that fail in the middle of a request: what the client gets of it, and what it costs.

mod decode;
mod prefill;
mod refusals;
mod streams;

use anyhow::{Result, ensure};
use edge_router_tests::client::Answer;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::{Value, json};

use crate::load::COMPLETIONS;

/// An error page that is neither JSON nor the router's own.
const PAGE: &str = "<html><body>Bad luck</body></html>";

/// Engines behind a router that probes them once and then leaves their health to the requests.
struct Scene {
    fleet: Fleet,
    router: Router,
}

impl Scene {
    async fn new(prefill: usize, decode: usize) -> Result<Self> {
        Self::with(prefill, decode, |router| router).await
    }

    async fn with(
        prefill: usize,
        decode: usize,
        set: impl FnOnce(RouterBuilder) -> RouterBuilder,
    ) -> Result<Self> {
        Self::of(Fleet::start(prefill, decode).await?, set).await
    }

    async fn of(fleet: Fleet, set: impl FnOnce(RouterBuilder) -> RouterBuilder) -> Result<Self> {
        let router = set(fleet.router().arg("--probe-interval-ms").arg("3600000")).start().await?;
        Ok(Self { fleet, router })
    }

    /// One request, which must be answered as if nothing had happened.
    async fn served(&self, stream: bool) -> Result<()> {
        let body = story(stream);
        let answer = self.router.stream(COMPLETIONS, &body).await?;
        let said = match (answer.status, stream) {
            (200, true) => answer.transcript().await?,
            _ => answer.whole().await?.ok()?.transcript(),
        };
        let expected = self.fleet.baseline(COMPLETIONS, &body).await?;
        ensure!(said.error.is_none() && said.done, "{said:?}");
        ensure!(said.text() == expected.text() && said.usage == expected.usage, "{said:?}\n{expected:?}");
        Ok(())
    }

    /// One request, and whatever comes back.
    async fn answer(&self, stream: bool) -> Result<Answer> {
        self.router.stream(COMPLETIONS, &story(stream)).await?.whole().await
    }

    /// A counter of the router: its name without prefix and ending, and a label.
    async fn count(&self, counter: &str, label: &str) -> Result<f64> {
        let name = format!("edge_router_{counter}_total");
        let labels: &[&str] = if label.is_empty() { &[] } else { &[label] };
        Ok(self.router.metrics().await?.sum(&name, labels))
    }

    /// How many requests to generate each prefill and each decode engine has seen.
    fn generations(&self) -> (Vec<usize>, Vec<usize>) {
        let of = |engines: &[edge_router_tests::engine::Engine]| {
            engines.iter().map(|engine| engine.requests().len()).collect()
        };
        (of(&self.fleet.prefill), of(&self.fleet.decode))
    }
}

fn story(stream: bool) -> Value {
    let mut body = json!({ "model": "sim", "prompt": "tell me of the sea", "max_tokens": 6, "seed": 3 });
    if stream {
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

/// Whether this is an error in the shape that OpenAI's clients understand, with this status and code.
#[track_caller]
pub(crate) fn assert_error(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let json = answer.json();
    assert_eq!(json["error"]["code"], code, "{json}");
    assert!(json["error"]["message"].is_string() && json["error"]["type"].is_string(), "{json}");
}
