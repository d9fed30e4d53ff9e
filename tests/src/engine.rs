//! A simulated vLLM engine that speaks HTTP on a loopback port, and its KV connector's part with its peers.
//!
//! It has a KV cache of real blocks, and every token it generates follows from what its blocks hold. A handoff that
//! goes wrong therefore answers 200 with another text than one engine alone would give, as on real hardware; the
//! engine dies, hangs or leaks where a real one does. What it must do was taken from recorded exchanges with
//! vLLM 0.32 (`tests/fixtures/captures`), and for connectors that need other hardware from vLLM 0.33's source.

mod answer;
mod blocks;
mod body;
mod bootstrap;
mod builder;
mod call;
mod config;
mod connector;
mod control;
mod counters;
mod digest;
mod encoder;
mod fault;
mod fields;
mod generate;
mod handoff;
mod inference;
mod journal;
mod lease;
mod load;
mod media;
mod meeting;
mod metrics;
mod models;
mod port;
mod process;
mod prompt;
mod rank;
mod registration;
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
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};

pub use builder::EngineBuilder;
pub use config::{LoadFailurePolicy, Role};
pub use connector::{Connector, SharedStore};
pub use counters::Counters;
pub use fault::{Fault, Step};
pub use journal::{End, Request};

use config::Config;
use process::{Machine, Process};

use crate::lock::lock;

use tokio::runtime::Runtime;

/// Where engines run, unless they were built otherwise: so that they go on while a test's own runtime stands still, as
/// when the test is over and its fleet waits for them.
static ENGINES: LazyLock<io::Result<Runtime>> = LazyLock::new(Runtime::new);

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

    /// An engine that encodes media for others.
    pub fn encode() -> EngineBuilder {
        EngineBuilder::new(Role::Encode)
    }

    fn boot(config: Config) -> io::Result<Self> {
        let machine = {
            let _runtime = enter(&config)?;
            Machine::new(config)?
        };
        let engine = Self { machine, process: Mutex::new(None) };
        engine.start()?;
        Ok(engine)
    }

    fn start(&self) -> io::Result<()> {
        let _runtime = enter(&self.machine.config)?;
        *lock(&self.process) = Some(self.machine.boot()?);
        Ok(())
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

    /// Requests that [`Fault::hold`] holds now.
    pub fn held(&self) -> usize {
        self.machine.faults.held()
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
        self.start()
    }

    /// Whether its core has died by itself, of a request that no engine survives. A restart cures it.
    pub fn died(&self) -> bool {
        self.look(Process::died)
    }

    /// How often its core has died by itself, over all its lives.
    pub fn deaths(&self) -> usize {
        self.machine.deaths.load(Ordering::Relaxed)
    }

    /// Its data-parallel ranks.
    pub fn dp_size(&self) -> usize {
        self.machine.config.dp_size
    }

    /// Finished requests whose blocks are kept for a peer that has not read them yet, and whose lease still runs.
    pub fn pinned(&self) -> usize {
        self.sum(|core| core.leases.len())
    }

    /// Those of [`Engine::pinned`] that a decode engine keeps for the conversation's next turn.
    pub fn pinned_readbacks(&self) -> usize {
        self.sum(|core| core.leases.readbacks())
    }

    /// Where encoders can push encodings to, one address for each rank.
    pub fn ec_zmq_addrs(&self) -> Vec<String> {
        (0..self.dp_size()).map(|rank| format!("tcp://{}/{rank}", self.address())).collect()
    }

    /// Encodings that nobody has fetched yet, or that were pushed here and not used yet.
    pub fn encodings(&self) -> usize {
        self.machine.encodings.len()
    }

    /// Blocks that no sequence has any more and that are not free either: of loads that were given up and that no peer
    /// has finished, nor perhaps ever will.
    pub fn leaked_blocks(&self) -> usize {
        self.sum(|core| core.leaked.len())
    }

    /// Blocks that are pinned or leaked, each counted once.
    pub fn withheld_blocks(&self) -> usize {
        self.sum(rank::Core::withheld)
    }

    /// Loads that wait for a peer now, perhaps for good.
    pub fn hanging(&self) -> usize {
        self.sum(|core| core.hanging)
    }

    /// Blocks that no sequence and no handoff holds; all of them while the engine is down.
    pub fn free_blocks(&self) -> usize {
        let process = lock(&self.process);
        process
            .as_ref()
            .map_or_else(|| self.total_blocks(), |process| process.sum(|core| core.pool.free_count()))
    }

    /// All blocks of all DP ranks.
    pub fn total_blocks(&self) -> usize {
        self.machine.config.blocks * self.machine.config.dp_size
    }

    /// Sequences that run now.
    pub fn running(&self) -> usize {
        self.sum(|core| core.running)
    }

    /// Sequences that wait for blocks or for their turn.
    pub fn waiting(&self) -> usize {
        self.sum(rank::Core::waiting)
    }

    /// The engine id of each DP rank, drawn anew at each start (MoRIIO's are its addresses); none while it is down.
    pub fn engine_ids(&self) -> Vec<String> {
        self.look(|process| process.ranks.iter().map(|rank| rank.place.engine_id.clone()).collect())
    }

    /// Where its side channel is: that of DP rank 0, the others' ports follow.
    pub fn side_channel(&self) -> SocketAddr {
        self.machine.side_address()
    }

    /// Where the bootstrap server of a prefill engine with Mooncake is.
    pub fn bootstrap_address(&self) -> Option<String> {
        self.machine.bootstrap_address().map(|address| address.to_string())
    }

    /// The labels that describe it to the router, as its connector's policy reads them.
    pub fn labels(&self) -> Vec<(String, String)> {
        let mut labels = Vec::new();
        let mut label = |name: &str, value: String| labels.push((name.to_owned(), value));
        match self.machine.config.connector {
            Connector::None | Connector::Content(_) => return labels,
            Connector::MoriioRead | Connector::MoriioWrite => {
                label("zmq_address", self.machine.zmq_address().unwrap_or_default());
                let mode = self.machine.config.connector.moriio_mode();
                label("transfer_mode", mode.unwrap_or_default().to_owned());
                return labels;
            }
            Connector::NixlPull | Connector::NixlPush => {
                label("side_channel", self.side_channel().to_string());
                if self.machine.config.bidirectional {
                    label("bidirectional_kv_xfer", "true".to_owned());
                }
            }
            Connector::Mooncake => match self.bootstrap_address() {
                Some(address) => {
                    label("bootstrap_address", address);
                    // What the router would say of it itself, and then take it for another instance.
                    label("kv_lease_s", "480".to_owned());
                }
                None => return labels,
            },
        }
        for (rank, id) in self.engine_ids().into_iter().enumerate() {
            label(&if rank == 0 { "engine_id".to_owned() } else { format!("engine_id_dp{rank}") }, id);
        }
        labels
    }

    /// All engine ids that it has ever had; a list that grows with each restart.
    pub(crate) fn all_engine_ids(&self) -> Arc<Mutex<Vec<String>>> {
        Arc::clone(&self.machine.engine_ids)
    }

    /// Whether it goes on while the caller's runtime stands still.
    pub(crate) fn has_own_runtime(&self) -> bool {
        !self.machine.config.on_callers_runtime
    }

    /// What it has counted since its last start.
    pub fn counters(&self) -> Counters {
        self.look(Process::counters)
    }

    fn look<T: Default>(&self, look: impl FnOnce(&Process) -> T) -> T {
        lock(&self.process).as_ref().map(look).unwrap_or_default()
    }

    fn sum(&self, of: impl Fn(&rank::Core) -> usize) -> usize {
        self.look(|process| process.sum(of))
    }
}

/// Makes the runtime that an engine runs on the current one.
fn enter(config: &Config) -> io::Result<Option<tokio::runtime::EnterGuard<'static>>> {
    if config.on_callers_runtime {
        return Ok(None);
    }
    match &*ENGINES {
        Ok(runtime) => Ok(Some(runtime.enter())),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}
