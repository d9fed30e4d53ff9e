//! A simulated vLLM engine that speaks HTTP on a loopback port, and NIXL-like pulls with its peers.
//!
//! It has a KV cache of real blocks, and every token it generates follows from what its blocks hold. A handoff that
//! goes wrong therefore answers 200 with another text than one engine alone would give, as on real hardware; the
//! engine dies, hangs or leaks where a real one does. What it must do was taken from recorded exchanges with
//! vLLM 0.32 (`tests/fixtures/captures`).

mod answer;
mod blocks;
mod body;
mod builder;
mod call;
mod config;
mod control;
mod counters;
mod digest;
mod fault;
mod fields;
mod generate;
mod handoff;
mod inference;
mod journal;
mod lease;
mod metrics;
mod models;
mod port;
mod process;
mod prompt;
mod rank;
mod rejection;
mod route;
mod sampling;
mod scale_out;
mod sequence;
mod server;
mod side_channel;
mod strict;
mod template;
mod tokenizer;
mod transfer;
mod violations;

use std::io;
use std::sync::Mutex;

pub use builder::EngineBuilder;
pub use config::{LoadFailurePolicy, Role};
pub use counters::Counters;
pub use fault::{Fault, Step};
pub use journal::{End, Request};

use config::Config;
use process::{Machine, Process};

use crate::lock::lock;

/// A running engine; dropping it stops it.
pub struct Engine {
    machine: Machine,
    process: Mutex<Option<Process>>,
}

impl Engine {
    /// An engine that computes prompts for others.
    pub fn prefill() -> EngineBuilder {
        EngineBuilder::new(Role::Prefill)
    }

    /// An engine that fetches KV caches and generates.
    pub fn decode() -> EngineBuilder {
        EngineBuilder::new(Role::Decode)
    }

    /// An engine that does both; alone, it is the baseline that disaggregated answers are compared with.
    pub fn both() -> EngineBuilder {
        EngineBuilder::new(Role::Both)
    }

    /// An engine without a model, that turns requests into token ids and back.
    pub fn render() -> EngineBuilder {
        EngineBuilder::new(Role::Render)
    }

    fn boot(config: Config) -> io::Result<Self> {
        let machine = Machine::new(config)?;
        let process = Mutex::new(Some(machine.boot()?));
        Ok(Self { machine, process })
    }

    /// Where it listens: `127.0.0.1:port` or `[::1]:port`, the same over restarts.
    pub fn address(&self) -> String {
        self.machine.address().to_string()
    }

    /// The address as a URL without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.machine.address())
    }

    /// What it was set up as.
    pub fn role(&self) -> Role {
        self.machine.config.role
    }

    /// The requests to generate that it has seen, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.seen().into_iter().filter(Request::generates).collect()
    }

    /// All requests that it has seen, probes and scrapes too, oldest first.
    pub fn seen(&self) -> Vec<Request> {
        self.machine.journal.requests()
    }

    /// Lets something go wrong.
    pub fn fault(&self, fault: Fault) {
        self.machine.faults.add(fault);
    }

    /// Lets nothing go wrong any more.
    pub fn clear_faults(&self) {
        self.machine.faults.clear();
    }

    /// What strict mode objects to; one sentence each.
    pub fn violations(&self) -> Vec<String> {
        self.machine.violations.all()
    }

    /// Kills the process: connections close, the port refuses, until [`Engine::restart`].
    pub async fn kill(&self) {
        let process = lock(&self.process).take();
        if let Some(process) = process {
            process.kill().await;
        }
    }

    /// Starts a new process on the same port, with a new engine id and empty caches; kills the old one first.
    ///
    /// # Errors
    /// If the port cannot be listened on again.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill().await;
        *lock(&self.process) = Some(self.machine.boot()?);
        Ok(())
    }

    /// Whether its core has died by itself, of a request that no engine survives. A restart cures it.
    pub fn died(&self) -> bool {
        self.look(Process::died)
    }

    /// Handoffs that nobody has read yet and whose lease still runs.
    pub fn pinned(&self) -> usize {
        self.look(Process::pinned)
    }

    /// Blocks lost for good to loads that nobody will ever serve.
    pub fn leaked_blocks(&self) -> usize {
        self.look(Process::leaked_blocks)
    }

    /// Blocks that no sequence and no handoff holds; all of them while the engine is down.
    pub fn free_blocks(&self) -> usize {
        lock(&self.process).as_ref().map_or_else(|| self.total_blocks(), Process::free_blocks)
    }

    /// All blocks of all DP ranks.
    pub fn total_blocks(&self) -> usize {
        self.machine.config.blocks * self.machine.config.dp_size
    }

    /// Sequences that run now.
    pub fn running(&self) -> usize {
        self.look(Process::running)
    }

    /// Sequences that wait for blocks or for their turn.
    pub fn waiting(&self) -> usize {
        self.look(Process::waiting)
    }

    /// What it has counted since its last start.
    pub fn counters(&self) -> Counters {
        self.look(Process::counters)
    }

    fn look<T: Default>(&self, look: impl FnOnce(&Process) -> T) -> T {
        lock(&self.process).as_ref().map(look).unwrap_or_default()
    }
}
