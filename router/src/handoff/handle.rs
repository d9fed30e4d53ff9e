//! The KV cache of one prompt on one prefill instance, until a decode instance has taken it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::config::Lease;
use crate::metrics::Metrics;

/// What prefill returned. Used once, within its lease; counted if it never is.
#[derive(Debug)]
pub struct Handle {
    params: Bytes,
    received: Instant,
    lease: Lease,
    metrics: Arc<Metrics>,
    used: bool,
}

impl Handle {
    /// A handle that arrived now. `params` is JSON text.
    pub fn new(params: Bytes, lease: Lease, metrics: Arc<Metrics>) -> Self {
        Self { params, received: Instant::now(), lease, metrics, used: false }
    }

    /// The JSON text.
    pub fn params(&self) -> Option<&str> {
        std::str::from_utf8(&self.params).ok()
    }

    /// Whether decode can still be sent there. The lease began inside prefill, a little before its
    /// answer arrived here, and only decode's admission prolongs it; the margin covers both.
    pub fn is_in_time(&self) -> bool {
        self.received.elapsed() + self.lease.margin < self.lease.duration
    }

    /// A decode instance may have it: it must not be used again, and is not an orphan.
    pub fn used(&mut self) {
        self.used = true;
    }

    /// The instance was not reached after all.
    pub fn not_used_after_all(&mut self) {
        self.used = false;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.used {
            self.metrics.request.orphaned();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fleet::{Fleet, FleetSettings};

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new(&Fleet::new(FleetSettings::default())))
    }

    fn handle(metrics: &Arc<Metrics>) -> Handle {
        let lease = Lease { duration: Duration::from_secs(30), margin: Duration::from_secs(10) };
        Handle::new(Bytes::from_static(b"{}"), lease, Arc::clone(metrics))
    }

    fn orphans(metrics: &Metrics) -> bool {
        metrics.render().contains("edge_router_orphaned_handles_total 1")
    }

    #[tokio::test(start_paused = true)]
    async fn a_handle_is_good_until_the_margin_of_its_lease() {
        let handle = handle(&metrics());
        tokio::time::advance(Duration::from_millis(19_999)).await;
        assert!(handle.is_in_time());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!handle.is_in_time());
    }

    #[tokio::test]
    async fn only_an_unused_handle_is_an_orphan() {
        let metrics = metrics();
        let mut used = handle(&metrics);
        used.used();
        drop(used);
        assert!(!orphans(&metrics));
        drop(handle(&metrics));
        assert!(orphans(&metrics));
    }
}
