//! Hosting of policies: WebAssembly components and the built-in, behind one trait, in a chain.
//!
//! A policy can be wrong, slow, hostile or dead. Whatever it does costs at most one decision, which
//! then falls to the next policy in the chain; the last one is built in and always decides.

mod bindings;
mod builtin;
mod chain;
mod component;
mod convert;
mod engine;
mod facts;
mod guest_log;
mod host;
mod instance;
mod leg;
mod probe;
mod reload;
mod slot;
mod version;

pub use builtin::BuiltIn;
pub use chain::{Chain, Chosen, Decided};
pub use component::LoadError;
pub use engine::{PolicyEngine, PolicySettings};
pub use facts::{ClientRequest, RequestFacts, SessionKey};
pub use instance::Fault;
pub use leg::CheckedLeg;
pub use reload::{PolicySource, Watched, watch};
pub use slot::{Slot, SlotStatus};

/// The hooks of the contract, as metrics and logs name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// `lifecycle.configure`.
    Configure,
    /// `lifecycle.instances-changed`.
    InstancesChanged,
    /// `scheduler.schedule`.
    Schedule,
    /// `prefill-rewriter.rewrite-prefill`.
    RewritePrefill,
    /// `kv-merger.merge-kv-params`.
    MergeKvParams,
    /// `observer.observe`.
    Observe,
    /// `state.snapshot`.
    Snapshot,
    /// `state.restore`.
    Restore,
}

impl Hook {
    /// Name in the contract.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configure => "configure",
            Self::InstancesChanged => "instances-changed",
            Self::Schedule => "schedule",
            Self::RewritePrefill => "rewrite-prefill",
            Self::MergeKvParams => "merge-kv-params",
            Self::Observe => "observe",
            Self::Snapshot => "snapshot",
            Self::Restore => "restore",
        }
    }
}
