//! Prefill and decode engines together, and what must be true of them when all requests are over.

mod encoders;
mod expected;

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde_json::Value;
use tokio::time::Instant;

use crate::client::{Client, PATIENCE};
use crate::engine::{Engine, EngineBuilder, Role};
use crate::router::{Router, RouterBuilder};
use crate::sse::Transcript;
use expected::{Expected, State};

/// The engines of a test.
///
/// Dropped at the end of the test, it waits until they are quiescent, and panics if they are not as they should be: see
/// [`Fleet::quiescent`]. A test that leaves them otherwise says so with one of the `expect_` functions.
pub struct Fleet {
    /// Prefill engines, in order of start.
    pub prefill: Vec<Engine>,
    /// Decode engines, in order of start.
    pub decode: Vec<Engine>,
    /// Encoders, in order of start; none unless they are added.
    pub encode: Vec<Engine>,
    /// One engine alone, that no router knows: what it answers is right.
    pub baseline: Engine,
    expected: Expected,
}

impl Fleet {
    /// Engines with default settings.
    ///
    /// # Errors
    /// If no ports can be had.
    pub async fn start(prefill: usize, decode: usize) -> Result<Self> {
        Self::start_with(prefill, decode, |engine| engine).await
    }

    /// Engines that `set` has set up, the baseline too, except that the latter has no KV connector.
    ///
    /// # Errors
    /// If no ports can be had.
    pub async fn start_with(
        prefill: usize,
        decode: usize,
        set: impl Fn(EngineBuilder) -> EngineBuilder,
    ) -> Result<Self> {
        let mut fleet = Self {
            prefill: Vec::new(),
            decode: Vec::new(),
            encode: Vec::new(),
            baseline: set(Engine::both()).without_connector().start().await?,
            expected: Expected::default(),
        };
        for _ in 0..prefill {
            fleet.prefill.push(set(Engine::prefill()).start().await?);
        }
        for _ in 0..decode {
            fleet.decode.push(set(Engine::decode()).start().await?);
        }
        Ok(fleet)
    }

    /// A router that knows all engines of both pools.
    pub fn router(&self) -> RouterBuilder {
        let router = self.prefill.iter().fold(Router::builder(), RouterBuilder::prefill);
        let router = self.decode.iter().fold(router, RouterBuilder::decode);
        self.encode.iter().fold(router, RouterBuilder::encode)
    }

    /// A router that knows all engines of both pools, and of each the labels that its connector's policy reads.
    pub fn labelled_router(&self) -> RouterBuilder {
        let router = self.engines().fold(Router::builder(), RouterBuilder::knows);
        router.config_toml(&self.instances_toml())
    }

    /// The `[[instance]]` tables of all engines, with labels, for a configuration file.
    pub fn instances_toml(&self) -> String {
        let mut toml = String::new();
        for engine in self.engines() {
            let role = match engine.role() {
                Role::Prefill => "prefill",
                Role::Encode => "encode",
                Role::Render => "render",
                Role::Decode | Role::Both => "decode",
            };
            let labels = engine.labels().into_iter().map(|(name, value)| format!("{name} = {value:?}"));
            let labels = labels.collect::<Vec<_>>().join(", ");
            let (address, dp_size) = (engine.address(), engine.dp_size());
            let _ = writeln!(
                toml,
                "[[instance]]\nrole = \"{role}\"\naddress = \"{address}\"\ndp_size = {dp_size}\nlabels = {{ {labels} }}"
            );
        }
        toml
    }

    /// What one engine alone answers, streamed or not.
    ///
    /// # Errors
    /// If it does not answer 200.
    pub async fn baseline(&self, path: &str, body: &Value) -> Result<Transcript> {
        let client = Client::new(&self.baseline.address());
        if body.get("stream") == Some(&Value::Bool(true)) {
            return client.stream(path, body).await?.transcript().await;
        }
        Ok(client.post_json(path, body).await?.ok()?.transcript())
    }

    /// Waits until nothing runs, and nothing is held that should not be.
    ///
    /// # Errors
    /// If that does not come to be: every block that is not pinned or leaked on purpose is free. Or if an engine died,
    /// a lease ran out, a handoff was read too late, or strict mode objects, other than on purpose.
    pub async fn quiescent(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_settled(deadline)? {
            tokio::time::sleep(State::LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// Like [`Fleet::quiescent`], as an assertion.
    ///
    /// # Panics
    /// If it does not hold.
    #[track_caller]
    pub fn assert_quiescent(&self) -> impl Future<Output = ()> + '_ {
        let caller = std::panic::Location::caller();
        async move {
            if let Err(error) = self.quiescent().await {
                panic!("at {caller}: {error:#}");
            }
        }
    }

    /// Whether all is as it should be. An error says what will never be, or is not at the deadline.
    fn is_settled(&self, deadline: Instant) -> Result<bool> {
        match State::of(&self.engines(), &self.expected) {
            State::Settled => Ok(true),
            State::NotYet(_) if Instant::now() < deadline => Ok(false),
            State::NotYet(what) | State::Wrong(what) => bail!("{what}:\n{}", self.describe()),
        }
    }

    fn engines(&self) -> impl Iterator<Item = &Engine> + Clone {
        self.prefill.iter().chain(&self.decode).chain(&self.encode)
    }

    fn describe(&self) -> String {
        let line = |engine: &Engine| {
            format!(
                "{:?} {}: {} running, {} waiting, {} hanging, {} pinned ({} for a next turn), {} of {} blocks free, \
                 {} leaked, {} deaths, {:?}\n",
                engine.role(),
                engine.address(),
                engine.running(),
                engine.waiting(),
                engine.hanging(),
                engine.pinned(),
                engine.pinned_readbacks(),
                engine.free_blocks(),
                engine.total_blocks(),
                engine.leaked_blocks(),
                engine.deaths(),
                engine.counters(),
            )
        };
        self.engines().map(line).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() || self.expected.anything() {
            return;
        }
        // Engines on the test's own runtime stand still by now.
        let patience =
            if self.engines().all(Engine::has_own_runtime) { PATIENCE } else { std::time::Duration::ZERO };
        let deadline = Instant::now() + patience;
        loop {
            match self.is_settled(deadline) {
                Ok(true) => return,
                Ok(false) => std::thread::sleep(State::LOOK_AGAIN),
                Err(error) => panic!("engines are not as a test should leave them: {error:#}"),
            }
        }
    }
}
