//! One request of one kind, with one fault, against engines and a router of its own.

use anyhow::{Context, Result, ensure};
use edge_router_tests::client::PATIENCE;
use edge_router_tests::engine::{EngineBuilder, Step};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::router::Router;
use edge_router_tests::sse::{EventBuffer, Transcript};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::fault;
use super::found::{ended, generated, in_words, observed};
use super::system::System;
use crate::in_flight::settled;
use crate::load::CHAT;

/// Places among the columns behind the first three.
const PINNED: usize = 4;
const LEAKS: usize = 5;

/// One row for one kind of request.
pub(super) struct Cell<'a> {
    system: System,
    fault: &'a str,
    path: &'static str,
    stream: bool,
    pairs: usize,
    /// `None` if it is chance.
    pinned: Option<usize>,
    /// The row's further columns.
    expected: Vec<&'a str>,
}

impl<'a> Cell<'a> {
    /// The kinds of request that a row is about.
    pub(super) fn all_of(system: System, row: &'a str) -> Result<Vec<Self>> {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let [fault, asked, pairs, ref expected @ ..] = columns[..] else { anyhow::bail!("too short: {row}") };
        let (pairs, pinned) = (pairs.parse()?, expected.get(PINNED).context("no `pinned`")?.parse().ok());
        let cell = |(path, stream)| {
            let expected = expected.to_vec();
            Self { system, fault, path, stream, pairs, pinned, expected }
        };
        Ok(system.kinds(asked).into_iter().map(cell).collect())
    }

    /// Whether everything is as the row says.
    pub(super) async fn check(&self) -> Result<()> {
        let kind = if self.stream { "streamed" } else { "whole" };
        self.run().await.with_context(|| format!("{} {kind}", self.path))
    }

    async fn run(&self) -> Result<()> {
        let connector = self.system.connector();
        let set = |engine: EngineBuilder| fault::engines(self.fault, engine.connector(connector.clone()));
        let mut fleet = Fleet::start_with(self.pairs, self.pairs, set).await?;
        match self.pinned {
            Some(handoffs) => fleet.expect_pinned(handoffs),
            None => fleet.expect_pinned_some(),
        }
        // Health is left to the requests; and none of them finds a probe's connection to an engine that has been killed
        // meanwhile, which would leave open whether the engine has seen it.
        let fixed = ["--probe-interval-ms", "3600000", "--pool-idle-ms", "1"];
        let args = fixed.iter().chain(fault::args(self.fault));
        let router = args.fold(self.system.router(&fleet), |router, arg| router.arg(arg));
        let router = router.start().await?;
        fault::inflict(self.fault, &fleet, self.stream).await?;
        let seen = match fault::client_leaves_at(self.fault) {
            Some(step) => self.leave(&fleet, &router, step).await?,
            None => self.ask(&fleet, &router).await?,
        };
        self.compare(&seen, &fleet, &router).await?;
        // How many they are depends on the length of the prompt.
        if self.expected.get(LEAKS) != Some(&"-") {
            fleet.expect_leaked_some();
        }
        fleet.quiescent().await
    }

    /// Waits until all is as the row says: some of it is counted in the background.
    async fn compare(&self, seen: &str, fleet: &Fleet, router: &Router) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let metrics = settled(router).await?;
            let mut found = observed(seen, fleet, &metrics);
            let generated = generated(fleet);
            found.push(if self.expected.last() == Some(&"≤1") && generated <= 1 {
                "≤1".to_owned()
            } else {
                generated.to_string()
            });
            let ended = ended(&metrics);
            let fits =
                |(found, told): (&String, &&str)| *told == "*" || told.split(" or ").any(|one| one == found);
            let fits = found.iter().zip(&self.expected).all(fits);
            if fits && found.len() == self.expected.len() && ended == 1.0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "found: {}; {ended} requests ended", found.join(" | "));
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn body(&self) -> Value {
        // Nobody waits for the end of the long one.
        let tokens = if fault::client_leaves_at(self.fault).is_some() { 30_000 } else { 6 };
        let mut body = json!({ "model": "sim", "max_tokens": tokens, "seed": 3 });
        let text = "tell me of the wind, and of the sea that it goes over";
        match self.path {
            CHAT => body["messages"] = json!([{ "role": "user", "content": text }]),
            _ => body["prompt"] = json!(text),
        }
        if self.stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({ "include_usage": true });
        }
        body
    }

    /// Asks, and reads to the end, whichever it is.
    async fn ask(&self, fleet: &Fleet, router: &Router) -> Result<String> {
        let baseline = fleet.baseline(self.path, &self.body()).await?;
        let mut answer = router.stream(self.path, &self.body()).await?;
        let mut bytes = Vec::new();
        let broken = loop {
            match answer.next_bytes().await {
                Ok(Some(piece)) => bytes.extend_from_slice(&piece),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        ensure!(!String::from_utf8_lossy(&bytes).contains("remote_"), "a handle leaks to the client");
        let said = match (answer.status, self.stream) {
            (200, true) => Transcript::of_events(&EventBuffer::default().push(&bytes)),
            _ => Transcript::of_body(&serde_json::from_slice(&bytes)?),
        };
        Ok(in_words(answer.status, &said, broken, &baseline))
    }

    /// Asks, and goes when an engine is at it, and in a stream has begun to answer.
    async fn leave(&self, fleet: &Fleet, router: &Router, step: Step) -> Result<String> {
        let (engine, frames) = match step {
            Step::Prefill => (&fleet.prefill[0], 0),
            Step::Decode => (&fleet.decode[0], usize::from(self.stream)),
        };
        let body = self.body();
        let asked = async {
            let mut answer = router.stream(self.path, &body).await?;
            while answer.next_bytes().await?.is_some() {}
            anyhow::Ok(())
        };
        let begun = || engine.requests().first().is_some_and(|request| request.frames >= frames);
        tokio::select! {
            ended = asked => anyhow::bail!("answered before the client could leave: {ended:?}"),
            at_it = eventually("the engine is at it", || engine.running() == 1 && begun()) => at_it?,
        }
        eventually("the engine is told", || engine.requests()[0].aborted()).await?;
        let left = settled(router).await?.sum("edge_router_requests_cancelled_total", &[]);
        ensure!(left == 1.0, "{left} clients have left");
        Ok("nothing".to_owned())
    }
}
