//! A running instance of a policy: one store, used by one call at a time.
//!
//! Calls are made on the runtime worker that serves the request; handing them to another thread would
//! cost ten times what they do. A call is polled once: a policy that tries to wait, by sleeping or by
//! any other host call that does not answer at once, has failed, and never holds the worker up.

use std::future::Future;
use std::sync::Arc;

use edge_router_policy::{Candidates, Leg, Manifest, Outcome, Pair, Phase, Target};
use futures_util::FutureExt as _;
use thiserror::Error;
use tracing::Level;
use wasmtime::component::ResourceTable;
use wasmtime::{Store, StoreLimitsBuilder, Trap};
use wasmtime_wasi::{I32Exit, WasiCtxBuilder};

use super::bindings::exports::edge_router::policy as exports;
use super::component::{LoadError, Program};
use super::convert;
use super::engine::PolicyEngine;
use super::facts::RequestFacts;
use super::guest_log::{self, GuestLog, GuestOutput};
use super::host::Host;

/// Bytes that one call may hand to the host, in lists and strings.
const MAX_RESULT: usize = 4 * 1024 * 1024;

/// What runs off the request path, `configure` at a load and `restore`, may take this many deadlines.
pub(super) const SETUP_FACTOR: u32 = 100;

/// Random bytes that a policy may ask for at once: making them takes time that no deadline ends.
const MAX_RANDOM: u64 = 64 * 1024;

/// Resources of WASI, such as clocks' pollables, that a policy may hold at once.
const MAX_RESOURCES: usize = 1024;

/// Why a hook gave no decision.
#[derive(Debug, Error)]
pub enum Fault {
    /// It answered with an error.
    #[error("it says: {0}")]
    Refused(String),
    /// It panicked or broke a rule of WebAssembly.
    #[error("it trapped: {0}")]
    Trap(String),
    /// It ran past its deadline.
    #[error("it ran past its deadline")]
    Deadline,
    /// It tried to sleep or to wait.
    #[error("it tried to wait, which a policy can't")]
    Waited,
    /// Its decision breaks the contract.
    #[error("its decision can't be used: {0}")]
    BadDecision(String),
    /// It failed too often of late and is left alone for a moment.
    #[error("it is resting after repeated faults")]
    Resting,
}

impl Fault {
    /// Name in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused(_) => "error",
            Self::Trap(_) => "trap",
            Self::Deadline => "deadline",
            Self::Waited => "waited",
            Self::BadDecision(_) => "bad_decision",
            Self::Resting => "resting",
        }
    }

    /// Whether the instance can't be called again.
    pub(super) fn is_fatal(&self) -> bool {
        matches!(self, Self::Trap(_) | Self::Deadline | Self::Waited)
    }

    fn of(error: &wasmtime::Error) -> Self {
        if error.downcast_ref::<Trap>() == Some(&Trap::Interrupt) {
            return Self::Deadline;
        }
        match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(code)) => Self::Trap(format!("it called exit({code})")),
            None => Self::Trap(error.root_cause().to_string()),
        }
    }
}

/// An instance and the hooks that it has.
pub(super) struct Running {
    store: Store<Host>,
    lifecycle: Option<exports::lifecycle::Guest>,
    scheduler: Option<exports::scheduler::Guest>,
    prefill_rewriter: Option<exports::prefill_rewriter::Guest>,
    kv_merger: Option<exports::kv_merger::Guest>,
    observer: Option<exports::observer::Guest>,
    state: Option<exports::state::Guest>,
    ticks: u64,
    setup_ticks: u64,
    /// Of the fleet that it was told last.
    pub(super) fleet: Option<u64>,
}

impl Running {
    /// A new instance, configured, which may take so many `deadlines` twice: to start, and for `configure`.
    /// The manifest is `None` where it has no `lifecycle`.
    pub(super) fn start(
        engine: &PolicyEngine,
        program: &Program,
        config: &str,
        log: &GuestLog,
        deadlines: u32,
    ) -> Result<(Self, Option<Manifest>), LoadError> {
        let start_ticks = engine.settings.ticks(deadlines);
        let mut store = new_store(engine, log);
        store.set_epoch_deadline(start_ticks);
        let probe = |fault| LoadError::Probe { hook: "start", fault };
        let instance = once(program.pre.instantiate_async(&mut store)).map_err(probe)?;
        macro_rules! load {
            ($field:ident) => {
                program
                    .exports
                    .$field
                    .as_ref()
                    .map(|indices| indices.load(&mut store, &instance))
                    .transpose()
                    .map_err(|e| LoadError::Mismatch(format!("{e:#}")))?
            };
        }
        let mut running = Self {
            lifecycle: load!(lifecycle),
            scheduler: load!(scheduler),
            prefill_rewriter: load!(prefill_rewriter),
            kv_merger: load!(kv_merger),
            observer: load!(observer),
            state: load!(state),
            store,
            ticks: engine.settings.ticks(1),
            setup_ticks: engine.settings.ticks(SETUP_FACTOR),
            fleet: None,
        };
        let manifest = running.configure(config, start_ticks)?;
        Ok((running, manifest))
    }

    /// The same, with the time of a setup for every call: for a trial off the request path.
    pub(super) fn on_trial(mut self) -> Self {
        self.ticks = self.setup_ticks;
        self
    }

    fn configure(&mut self, config: &str, ticks: u64) -> Result<Option<Manifest>, LoadError> {
        let Some(lifecycle) = &self.lifecycle else { return Ok(None) };
        self.store.set_epoch_deadline(ticks);
        let answer = once(lifecycle.call_configure(&mut self.store, config))
            .map_err(|fault| LoadError::Probe { hook: "configure", fault })?;
        answer.map(|m| Some(convert::manifest(m))).map_err(|text| LoadError::Configuration(short(&text)))
    }

    /// Tells it the fleet.
    pub(super) fn instances_changed(
        &mut self,
        generation: u64,
        instances: &[edge_router_policy::Instance],
    ) -> Result<(), Fault> {
        self.fleet = Some(generation);
        let Some(lifecycle) = &self.lifecycle else { return Ok(()) };
        let instances: Vec<_> = instances.iter().map(convert::instance).collect();
        self.store.set_epoch_deadline(self.ticks);
        once(lifecycle.call_instances_changed(&mut self.store, &instances))
    }

    pub(super) fn schedule(
        &mut self,
        phase: Phase,
        facts: &Arc<RequestFacts>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, Fault> {
        let Some(scheduler) = &self.scheduler else { return Ok(None) };
        let (store, candidates) = (lend(&mut self.store, facts, self.ticks), convert::candidates(candidates));
        let answer = once(scheduler.call_schedule(store, convert::phase(phase), Host::lent(), &candidates))?;
        Ok(answer.map_err(refused)?.map(convert::target))
    }

    pub(super) fn rewrite_prefill(
        &mut self,
        facts: &Arc<RequestFacts>,
        pair: Pair,
    ) -> Result<Option<Leg>, Fault> {
        let Some(rewriter) = &self.prefill_rewriter else { return Ok(None) };
        let store = lend(&mut self.store, facts, self.ticks);
        let answer = once(rewriter.call_rewrite_prefill(store, Host::lent(), convert::pair(pair)))?;
        Ok(answer.map_err(refused)?.map(convert::leg))
    }

    pub(super) fn merge_kv_params(
        &mut self,
        facts: &Arc<RequestFacts>,
        pair: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, Fault> {
        let Some(merger) = &self.kv_merger else { return Ok(None) };
        let store = lend(&mut self.store, facts, self.ticks);
        let answer = once(merger.call_merge_kv_params(store, Host::lent(), convert::pair(pair), kv_params))?;
        Ok(answer.map_err(refused)?.map(convert::leg))
    }

    pub(super) fn observe(&mut self, outcomes: &[Outcome]) -> Result<(), Fault> {
        let Some(observer) = &self.observer else { return Ok(()) };
        let outcomes: Vec<_> = outcomes.iter().map(convert::outcome).collect();
        self.store.set_epoch_deadline(self.ticks);
        once(observer.call_observe(&mut self.store, &outcomes))
    }

    /// Its memory, for the version that replaces it. Requests wait for it meanwhile, so it gets no more
    /// time than any of their calls.
    pub(super) fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        let Some(state) = &self.state else { return Ok(Vec::new()) };
        self.store.set_epoch_deadline(self.ticks);
        once(state.call_snapshot(&mut self.store))
    }

    /// The memory of the version that it replaces.
    pub(super) fn restore(&mut self, snapshot: &[u8]) -> Result<(), Fault> {
        let Some(state) = &self.state else { return Ok(()) };
        self.store.set_epoch_deadline(self.setup_ticks);
        once(state.call_restore(&mut self.store, snapshot))?.map_err(refused)
    }
}

fn new_store(engine: &PolicyEngine, log: &GuestLog) -> Store<Host> {
    let wasi = WasiCtxBuilder::new()
        .stdout(GuestOutput::new(log.clone(), Level::INFO))
        .stderr(GuestOutput::new(log.clone(), Level::WARN))
        .allow_tcp(false)
        .allow_udp(false)
        .max_random_size(MAX_RANDOM)
        .build();
    let limits = StoreLimitsBuilder::new()
        .memory_size(engine.settings.max_memory)
        .table_elements(20_000)
        .instances(64)
        .tables(64)
        .memories(8)
        .build();
    let mut table = ResourceTable::new();
    table.set_max_capacity(MAX_RESOURCES);
    let host = Host { wasi, table, limits, log: log.clone(), current: None };
    let mut store = Store::new(&engine.engine, host);
    store.limiter(|host| &mut host.limits);
    store.set_hostcall_fuel(MAX_RESULT);
    store.epoch_deadline_trap();
    store
}

/// Makes `facts` the request of the next call.
fn lend<'s>(store: &'s mut Store<Host>, facts: &Arc<RequestFacts>, ticks: u64) -> &'s mut Store<Host> {
    store.data_mut().current = Some(Arc::clone(facts));
    store.set_epoch_deadline(ticks);
    store
}

/// Runs a call to its end, without waiting.
fn once<T>(call: impl Future<Output = wasmtime::Result<T>>) -> Result<T, Fault> {
    match call.now_or_never() {
        None => Err(Fault::Waited),
        Some(result) => result.map_err(|error| Fault::of(&error)),
    }
}

fn refused(text: impl AsRef<str>) -> Fault {
    Fault::Refused(short(text.as_ref()))
}

/// A policy's words, cut to what a log line can bear.
fn short(text: &str) -> String {
    guest_log::one_line(text, 512)
}
