//! From a file's bytes to a checked program: what it exports, and why it can't be used if so.

use std::sync::Arc;

use thiserror::Error;
use wasmtime::component::{Component, InstancePre};

use super::bindings::exports::edge_router::policy as exports;
use super::engine::PolicyEngine;
use super::host::Host;
use super::instance::Fault;

/// The contract's package, and the version that this router offers.
const PACKAGE: &str = "edge-router:policy/";
const TRACK: &str = "0.1";

/// A file above this size is taken for a mistake.
pub(super) const MAX_FILE: u64 = 64 * 1024 * 1024;

/// Why a policy can't be used. The file's name is put in front by who logs it.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file can't be read.
    #[error("can't be read")]
    Io(#[from] std::io::Error),
    /// It is larger than any policy.
    #[error("has {0} bytes; at most {MAX_FILE} are loaded")]
    TooLarge(u64),
    /// A wasm module without the component layer.
    #[error("is a core module, not a component; build it for the target wasm32-wasip2")]
    CoreModule,
    /// Something else, or cut off.
    #[error("is not a WebAssembly component: {0}")]
    Invalid(String),
    /// None of the contract's hooks.
    #[error(
        "exports no edge-router:policy/{{scheduler,prefill-rewriter,kv-merger,observer}}@{TRACK}; found {0}"
    )]
    NoHooks(String),
    /// Built against another version of the contract.
    #[error("was built for edge-router:policy {built}, this router offers {TRACK}")]
    Version {
        /// Version in the component.
        built: String,
    },
    /// It needs something that the router doesn't offer, or exports a hook of another shape.
    #[error("does not fit this router: {0}")]
    Mismatch(String),
    /// `configure` refused.
    #[error("refuses its configuration: {0}")]
    Configuration(String),
    /// The manifest breaks the contract.
    #[error("has a bad manifest: {0}")]
    Manifest(String),
    /// It failed while it was started or tried.
    #[error("failed in {hook}: {fault}")]
    Probe {
        /// The hook that failed.
        hook: &'static str,
        /// How.
        #[source]
        fault: Fault,
    },
}

impl LoadError {
    /// Whether it ran out of time.
    pub(super) fn is_deadline(&self) -> bool {
        matches!(self, Self::Probe { fault: Fault::Deadline, .. })
    }
}

/// Which of the contract's interfaces a component exports.
pub(super) struct Exports {
    pub(super) lifecycle: Option<exports::lifecycle::GuestIndices>,
    pub(super) scheduler: Option<exports::scheduler::GuestIndices>,
    pub(super) prefill_rewriter: Option<exports::prefill_rewriter::GuestIndices>,
    pub(super) kv_merger: Option<exports::kv_merger::GuestIndices>,
    pub(super) observer: Option<exports::observer::GuestIndices>,
    pub(super) state: Option<exports::state::GuestIndices>,
}

/// A compiled policy, ready to be instantiated.
pub(super) struct Program {
    pub(super) pre: InstancePre<Host>,
    pub(super) exports: Exports,
}

/// Compiles and checks `bytes`. Takes as long as a compiler does: not for a runtime worker.
pub(super) fn compile(engine: &PolicyEngine, bytes: &[u8]) -> Result<Arc<Program>, LoadError> {
    match bytes.get(..8) {
        Some(b"\0asm\x01\0\0\0") => return Err(LoadError::CoreModule),
        Some(b"\0asm\x0d\0\x01\0") => {}
        _ => return Err(LoadError::Invalid("it has no component header".into())),
    }
    let component =
        Component::from_binary(&engine.engine, bytes).map_err(|e| LoadError::Invalid(format!("{e:#}")))?;
    check_contract(engine, &component)?;
    let pre = engine.linker.instantiate_pre(&component).map_err(|e| LoadError::Mismatch(format!("{e:#}")))?;
    let exports = find_exports(engine, &component, &pre)?;
    Ok(Arc::new(Program { pre, exports }))
}

/// Refuses other versions of the contract, and components that have nothing to do with it.
fn check_contract(engine: &PolicyEngine, component: &Component) -> Result<(), LoadError> {
    let ty = component.component_type();
    let exported: Vec<&str> = ty.exports(&engine.engine).map(|(name, _)| name).collect();
    let imported = ty.imports(&engine.engine).map(|(name, _)| name);
    for name in exported.iter().copied().chain(imported) {
        let Some(version) = name.strip_prefix(PACKAGE).and_then(|rest| rest.split_once('@')).map(|(_, v)| v)
        else {
            continue;
        };
        if version != TRACK && !version.starts_with(&format!("{TRACK}.")) {
            return Err(LoadError::Version { built: version.to_owned() });
        }
    }
    let hooks = ["scheduler", "prefill-rewriter", "kv-merger", "observer"];
    if hooks.iter().any(|hook| exported.iter().any(|name| is_interface(name, hook))) {
        return Ok(());
    }
    Err(LoadError::NoHooks(if exported.is_empty() { "no exports".into() } else { exported.join(", ") }))
}

fn is_interface(export: &str, interface: &str) -> bool {
    export.strip_prefix(PACKAGE).is_some_and(|rest| rest.split('@').next() == Some(interface))
}

fn find_exports(
    engine: &PolicyEngine,
    component: &Component,
    pre: &InstancePre<Host>,
) -> Result<Exports, LoadError> {
    let ty = component.component_type();
    let has = |interface: &str| ty.exports(&engine.engine).any(|(name, _)| is_interface(name, interface));
    // An interface that is exported must have the right shape; one that is not is absent.
    macro_rules! find {
        ($module:ident, $name:literal) => {
            has($name)
                .then(|| exports::$module::GuestIndices::new(pre))
                .transpose()
                .map_err(|e| LoadError::Mismatch(format!("interface {}: {e:#}", $name)))?
        };
    }
    Ok(Exports {
        lifecycle: find!(lifecycle, "lifecycle"),
        scheduler: find!(scheduler, "scheduler"),
        prefill_rewriter: find!(prefill_rewriter, "prefill-rewriter"),
        kv_merger: find!(kv_merger, "kv-merger"),
        observer: find!(observer, "observer"),
        state: find!(state, "state"),
    })
}

#[cfg(test)]
#[path = "component_tests.rs"]
mod tests;
