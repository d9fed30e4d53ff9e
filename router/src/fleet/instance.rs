//! One engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use edge_router_policy::InstanceId;
use tokio_util::sync::CancellationToken;

use super::FleetSettings;
use super::health::Health;
use super::load::Load;
use super::spec::InstanceSpec;
use crate::upstream::Pool;

/// One engine, with its connections and its figures.
#[derive(Debug)]
pub struct Instance {
    id: InstanceId,
    spec: InstanceSpec,
    pool: Arc<Pool>,
    pub(super) health: Health,
    pub(super) load: Load,
    max_in_flight: u32,
    draining: AtomicBool,
    pub(super) retired: CancellationToken,
}

impl Instance {
    pub(super) fn new(id: InstanceId, spec: InstanceSpec, settings: &FleetSettings) -> Self {
        Self {
            id,
            pool: Pool::new(spec.address.clone(), settings.pool),
            health: Health::new(settings.health),
            load: Load::default(),
            max_in_flight: settings.max_in_flight,
            draining: AtomicBool::new(false),
            retired: CancellationToken::new(),
            spec,
        }
    }

    /// Its id, never used for another instance.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// What was said of it when it joined.
    pub fn spec(&self) -> &InstanceSpec {
        &self.spec
    }

    /// As policies are told of it.
    pub fn described(&self) -> edge_router_policy::Instance {
        edge_router_policy::Instance {
            id: self.id,
            role: self.spec.role,
            address: self.spec.address.clone(),
            dp_size: self.spec.dp_size,
            tp_size: self.spec.tp_size,
            labels: self.spec.labels.clone(),
        }
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.spec.address
    }

    /// Its connections.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Its health.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Its figures.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Whether new requests may be sent to it now.
    pub fn is_available(&self) -> bool {
        self.is_in_service() && !self.is_full()
    }

    /// Whether it is healthy and not being drained.
    pub fn is_in_service(&self) -> bool {
        self.health.is_healthy() && !self.is_draining()
    }

    /// Whether it would be available, had it not as many requests in flight as it may.
    pub fn is_saturated(&self) -> bool {
        self.is_in_service() && self.is_full()
    }

    fn is_full(&self) -> bool {
        self.max_in_flight != 0 && self.load.in_flight() >= self.max_in_flight
    }

    /// Stops or resumes sending it new requests.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    /// Whether it is being drained.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// It has left the fleet: ends its probes.
    pub(super) fn retire(&self) {
        self.retired.cancel();
    }
}
