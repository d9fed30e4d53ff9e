//! Prefill and decode engines together, and what must be true of them when all requests are over.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::engine::{Engine, EngineBuilder};
use crate::patience::eventually;
use crate::router::{Router, RouterBuilder};
use crate::sse::Transcript;

/// The engines of a test. Dropped, it panics if strict mode has objected to anything.
pub struct Fleet {
    /// Prefill engines, in order of start.
    pub prefill: Vec<Engine>,
    /// Decode engines, in order of start.
    pub decode: Vec<Engine>,
    /// One engine alone, that no router knows: what it answers is right.
    pub baseline: Engine,
    expected: Expected,
}

/// What a test has done to the engines on purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    pinned: usize,
    expired: u64,
    violations: bool,
}

impl Fleet {
    /// Engines with default settings.
    ///
    /// # Errors
    /// If no ports can be had.
    pub async fn start(prefill: usize, decode: usize) -> Result<Self> {
        Self::start_with(prefill, decode, |engine| engine).await
    }

    /// Engines that `set` has set up, the baseline too.
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
            baseline: set(Engine::both()).start().await?,
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
        self.decode.iter().fold(router, RouterBuilder::decode)
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

    /// So many handoffs are left unread on purpose.
    pub fn expect_pinned(&mut self, handoffs: usize) {
        self.expected.pinned = handoffs;
    }

    /// So many leases have run out on purpose.
    pub fn expect_expired(&mut self, leases: u64) {
        self.expected.expired = leases;
    }

    /// Requests that strict mode objects to are sent on purpose.
    pub fn expect_violations(&mut self) {
        self.expected.violations = true;
    }

    /// Waits until nothing runs, and nothing is held that should not be.
    ///
    /// # Errors
    /// If that does not come to be, or if an engine died, a lease ran out, a handoff was read too late, or strict
    /// mode objects.
    pub async fn quiescent(&self) -> Result<()> {
        let idle = |engine: &Engine| {
            let held = engine.total_blocks() - engine.free_blocks();
            engine.running() + engine.waiting() == 0 && (held == 0 || engine.pinned() > 0)
        };
        let pinned = || self.engines().map(Engine::pinned).sum::<usize>();
        let holds = || self.engines().all(idle) && pinned() == self.expected.pinned;
        let waited = eventually("no engine runs, waits, or holds blocks", holds).await;
        ensure!(waited.is_ok(), "engines are not quiescent:\n{}", self.describe());
        ensure!(
            !self.engines().any(Engine::died),
            "an engine died of what it was sent:\n{}",
            self.describe()
        );
        let expired: u64 = self.engines().map(|engine| engine.counters().kv_expired).sum();
        ensure!(expired == self.expected.expired, "{expired} leases ran out:\n{}", self.describe());
        let late: u64 = self.engines().map(|engine| engine.counters().notifications_after_expiry).sum();
        ensure!(late == 0, "{late} handoffs were read when they were pinned no more:\n{}", self.describe());
        ensure!(
            self.expected.violations || self.violations().is_empty(),
            "violations: {:#?}",
            self.violations()
        );
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

    fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.prefill.iter().chain(&self.decode)
    }

    fn violations(&self) -> Vec<String> {
        self.engines().flat_map(Engine::violations).collect()
    }

    fn describe(&self) -> String {
        let line = |engine: &Engine| {
            format!(
                "{:?} {}: {} running, {} waiting, {} pinned, {} of {} blocks free, {} leaked, {:?}\n",
                engine.role(),
                engine.address(),
                engine.running(),
                engine.waiting(),
                engine.pinned(),
                engine.free_blocks(),
                engine.total_blocks(),
                engine.leaked_blocks(),
                engine.counters(),
            )
        };
        self.engines().map(line).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let violations = self.violations();
        if !std::thread::panicking() && !self.expected.violations {
            assert!(violations.is_empty(), "engines object to what they were sent: {violations:#?}");
        }
    }
}
