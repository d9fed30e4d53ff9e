//! Metrics of policies.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::policy::{Fault, Hook};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultLabels {
    policy: String,
    hook: &'static str,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    policy: String,
    outcome: &'static str,
}

/// Counts what policies do wrong and how often they are reloaded.
#[derive(Debug, Default)]
pub struct PolicyMetrics {
    faults: Family<FaultLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
}

impl PolicyMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "policy_faults",
            "Calls of a policy that gave no decision; the next policy in the chain decided",
            metrics.faults.clone(),
        );
        registry.register("policy_reloads", "Reloads of a policy's file", metrics.reloads.clone());
        metrics
    }

    /// A call failed, and the decision fell to the next policy.
    pub fn fault(&self, policy: &str, hook: Hook, fault: &Fault) {
        let labels = FaultLabels { policy: policy.to_owned(), hook: hook.name(), kind: fault.kind() };
        self.faults.get_or_create(&labels).inc();
    }

    /// A file was reloaded (`ok`), refused (`error`), or its version replaced by the one before
    /// (`rolled_back`).
    pub fn reloaded(&self, policy: &str, outcome: &'static str) {
        self.reloads.get_or_create(&ReloadLabels { policy: policy.to_owned(), outcome }).inc();
    }
}
