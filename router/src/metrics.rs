//! What the router counts, in Prometheus' text format on `/metrics`.

mod discovery;
mod fleet;
mod histogram;
mod policy;
mod request;

use std::sync::Arc;

use prometheus_client::registry::Registry;

pub use discovery::DiscoveryMetrics;
pub use policy::PolicyMetrics;
pub use request::{Fallback, RequestMetrics};

use crate::fleet::Fleet;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Of discovery.
    pub discovery: Arc<DiscoveryMetrics>,
    /// Of policies.
    pub policy: Arc<PolicyMetrics>,
    /// Of requests.
    pub request: RequestMetrics,
}

impl Metrics {
    /// Metrics that all stand at zero; those of the fleet are read when they are asked for.
    pub fn new(fleet: &Arc<Fleet>) -> Self {
        let mut registry = Registry::with_prefix("edge_router");
        let discovery = Arc::new(DiscoveryMetrics::registered(&mut registry));
        let policy = Arc::new(PolicyMetrics::registered(&mut registry));
        let request = RequestMetrics::registered(&mut registry);
        registry.register_collector(Box::new(fleet::FleetCollector::new(fleet)));
        Self { registry, discovery, policy, request }
    }

    /// The text for `/metrics`.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        // Writing to a string can't fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
