//! The WebAssembly engine: one per process, with the limits that hold for every policy.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Config, Engine};

use super::bindings::edge_router::policy::{log, request};
use super::host::Host;

/// How often the clock of deadlines ticks. Finer than any deadline needs, coarse enough to cost an
/// idle router nothing that shows.
const TICK: Duration = Duration::from_millis(5);

/// Limits of policies.
#[derive(Debug, Clone, Copy)]
pub struct PolicySettings {
    /// For one call of a hook. `configure` and `restore`, which run off the request path, get a
    /// hundred times as much.
    pub deadline: Duration,
    /// Linear memory of one policy in bytes.
    pub max_memory: usize,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(50), max_memory: 64 * 1024 * 1024 }
    }
}

impl PolicySettings {
    /// The deadline in ticks of the epoch clock. One more than the time asks for: the running tick
    /// does not count.
    pub(super) fn ticks(&self, factor: u32) -> u64 {
        let ticks = (self.deadline * factor).as_millis().div_ceil(TICK.as_millis()) + 1;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

/// Compiles policies and runs them.
#[derive(Clone)]
pub struct PolicyEngine {
    pub(super) engine: Engine,
    pub(super) linker: Arc<Linker<Host>>,
    pub(super) settings: PolicySettings,
}

impl std::fmt::Debug for PolicyEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyEngine").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl PolicyEngine {
    /// An engine, and the thread that ticks its clock as long as it lives.
    ///
    /// # Errors
    /// When the machine can't run WebAssembly, for example because it refuses executable memory.
    pub fn new(settings: PolicySettings) -> wasmtime::Result<Self> {
        let mut config = Config::new();
        config.wasm_component_model(true).epoch_interruption(true);
        // Frames of a policy; a deeper recursion traps.
        config.max_wasm_stack(512 * 1024).async_stack_size(1024 * 1024);
        let engine = Engine::new(&config)?;
        let mut linker = Linker::new(&engine);
        // Links all of WASI 0.2, since a Rust policy imports much of it whether it uses it or not. What it
        // may do is decided by its `WasiCtx`, which allows nothing.
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        request::add_to_linker::<_, HasSelf<Host>>(&mut linker, |host| host)?;
        log::add_to_linker::<_, HasSelf<Host>>(&mut linker, |host| host)?;
        start_clock(&engine)?;
        Ok(Self { engine, linker: Arc::new(linker), settings })
    }
}

/// A thread rather than a task: the clock must go on while policies occupy the runtime's workers.
fn start_clock(engine: &Engine) -> wasmtime::Result<()> {
    let engine = engine.weak();
    let tick = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    };
    std::thread::Builder::new().name("policy-clock".into()).spawn(tick)?;
    Ok(())
}
