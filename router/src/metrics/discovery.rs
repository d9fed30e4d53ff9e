//! Metrics of discovery.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// Counts what engines say that can't be used.
#[derive(Debug, Default)]
pub struct DiscoveryMetrics {
    refused: Family<RefusalLabels, Counter>,
}

impl DiscoveryMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "registrations_refused",
            "Messages on the registration port that register nobody",
            metrics.refused.clone(),
        );
        metrics
    }

    /// A message registers nobody, for this reason.
    pub fn registration_refused(&self, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabels { reason }).inc();
    }
}
