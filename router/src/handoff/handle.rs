//! The KV cache of one prompt on one prefill instance, until a decode instance has taken it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::release::Releaser;
use crate::config::Lease;

/// What prefill returned. Used once, within its lease; given back if it never is.
#[derive(Debug)]
pub struct Handle {
    params: Option<Bytes>,
    received: Instant,
    lease: Lease,
    releaser: Arc<Releaser>,
    fate: Fate,
}

/// What has become of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// No decode instance knows of it.
    Unused,
    /// A decode instance fetches what it names, or lets go of it.
    Used,
    /// A decode instance turned it away, failed to fetch what it names, or gave no answer. It may or may
    /// not have let go of that.
    TurnedAway,
}

impl Handle {
    /// A handle that arrived now. `params` is JSON text; `None` where the engine keeps the KV cache under a
    /// name that it was given.
    pub fn new(params: Option<Bytes>, lease: Lease, releaser: Arc<Releaser>) -> Self {
        Self { params, received: Instant::now(), lease, releaser, fate: Fate::Unused }
    }

    /// The JSON text, if prefill returned any.
    pub fn params(&self) -> Option<&str> {
        std::str::from_utf8(self.params.as_ref()?).ok()
    }

    /// Whether decode can still be sent there. The lease began inside prefill, a little before its
    /// answer arrived here, and only decode's admission prolongs it; the margin covers both.
    pub fn is_in_time(&self) -> bool {
        self.received.elapsed() + self.lease.margin < self.lease.duration
    }

    /// A decode instance may have it: it must not be used again.
    pub fn used(&mut self) {
        self.fate = Fate::Used;
    }

    /// The instance was not reached after all.
    pub fn not_used_after_all(&mut self) {
        self.fate = Fate::Unused;
    }

    /// The instance has failed the request: it takes none at the moment, could not fetch the KV cache, or
    /// broke off without an answer.
    pub fn turned_away(&mut self) {
        self.fate = Fate::TurnedAway;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let expired = self.received.elapsed() >= self.lease.duration;
        match self.fate {
            Fate::Used => {}
            Fate::Unused if !expired => self.releaser.release(self.params.as_ref()),
            // Prefill would be told twice, and count it as a sign of a KV cache read too late.
            Fate::Unused | Fate::TurnedAway => self.releaser.orphaned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fleet::{Fleet, FleetSettings};
    use crate::metrics::Metrics;

    fn releaser() -> (Arc<Metrics>, Arc<Releaser>) {
        let fleet = Fleet::new(FleetSettings::default());
        let metrics = Arc::new(Metrics::new(&fleet));
        (Arc::clone(&metrics), Arc::new(Releaser::new(fleet, metrics, None, true)))
    }

    fn handle(releaser: &Arc<Releaser>) -> Handle {
        let lease = Lease { duration: Duration::from_secs(30), margin: Duration::from_secs(10) };
        Handle::new(Some(Bytes::from_static(b"{}")), lease, Arc::clone(releaser))
    }

    fn orphans(metrics: &Metrics) -> bool {
        metrics.render().contains("edge_router_orphaned_handles_total 1")
    }

    #[tokio::test(start_paused = true)]
    async fn a_handle_is_good_until_the_margin_of_its_lease() {
        let handle = handle(&releaser().1);
        tokio::time::advance(Duration::from_millis(19_999)).await;
        assert!(handle.is_in_time());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!handle.is_in_time());
    }

    #[tokio::test]
    async fn only_an_unused_handle_is_an_orphan() {
        let (metrics, releaser) = releaser();
        let mut used = handle(&releaser);
        used.used();
        drop(used);
        assert!(!orphans(&metrics));
        drop(handle(&releaser));
        assert!(orphans(&metrics));
    }
}
