//! How busy an instance is: what this router has on it, and what the engine reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::instance::Instance;

/// Figures of one instance. Single figures may be a moment apart; none can drift.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    queued_tokens: AtomicU32,
    running: AtomicU32,
    waiting: AtomicU32,
    /// Bits of an `f32`, plus one so that zero means unknown.
    kv_usage: AtomicU32,
    /// Bits of an `f32`.
    ttft_ms: AtomicU32,
}

impl Load {
    /// Requests of this router that are on the instance.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Estimated prompt tokens of those that have not answered yet.
    pub fn queued_tokens(&self) -> u32 {
        self.queued_tokens.load(Ordering::Relaxed)
    }

    /// Requests running on the engine, as it last reported.
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    /// Requests waiting in the engine, as it last reported.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Share of the KV cache in use; negative when unknown.
    pub fn kv_usage(&self) -> f32 {
        match self.kv_usage.load(Ordering::Relaxed) {
            0 => -1.0,
            bits => f32::from_bits(bits - 1),
        }
    }

    /// Smoothed time to the first byte in milliseconds; 0 when unknown.
    pub fn ttft_ms(&self) -> f32 {
        f32::from_bits(self.ttft_ms.load(Ordering::Relaxed))
    }

    /// Takes in what the engine reports; `None` where it says nothing.
    pub(super) fn report(&self, running: u32, waiting: u32, kv_usage: Option<f32>) {
        self.running.store(running, Ordering::Relaxed);
        self.waiting.store(waiting, Ordering::Relaxed);
        let kv_usage = kv_usage.filter(|u| u.is_finite()).map_or(0, |u| u.clamp(0.0, 1.0).to_bits() + 1);
        self.kv_usage.store(kv_usage, Ordering::Relaxed);
    }

    fn first_byte_after(&self, ms: f32) {
        let before = self.ttft_ms();
        // A tenth of each new figure: some twenty requests tell a slow instance from a slow prompt.
        let now = if before == 0.0 { ms } else { before + (ms - before) * 0.1 };
        self.ttft_ms.store(now.to_bits(), Ordering::Relaxed);
    }
}

/// A request on an instance. Exists from the moment the instance is chosen until the request is done
/// with it, however it ends.
#[derive(Debug)]
pub struct InFlight {
    instance: Arc<Instance>,
    queued: u32,
    since: tokio::time::Instant,
}

impl InFlight {
    /// Counts a request of `tokens` prompt tokens in.
    pub fn new(instance: Arc<Instance>, tokens: u32) -> Self {
        instance.load.in_flight.fetch_add(1, Ordering::Relaxed);
        instance.load.queued_tokens.fetch_add(tokens, Ordering::Relaxed);
        Self { instance, queued: tokens, since: tokio::time::Instant::now() }
    }

    /// The instance.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// The answer has begun: its prompt is no longer ahead of others.
    pub fn answered(&mut self) {
        self.settle();
        self.instance.load.first_byte_after(self.since.elapsed().as_secs_f32() * 1000.0);
    }

    fn settle(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        self.instance.load.queued_tokens.fetch_sub(queued, Ordering::Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.settle();
        self.instance.load.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use edge_router_policy::Role;

    use super::super::{FleetSettings, InstanceSpec};
    use super::*;

    #[tokio::test]
    async fn counts_come_back_however_a_request_ends() {
        let spec = InstanceSpec::new(Role::Prefill, "127.0.0.1:1".into());
        let instance = Arc::new(Instance::new(0, spec, &FleetSettings::default()));
        let mut first = InFlight::new(Arc::clone(&instance), 100);
        let second = InFlight::new(Arc::clone(&instance), 10);
        assert_eq!((instance.load.in_flight(), instance.load.queued_tokens()), (2, 110));
        first.answered();
        assert_eq!((instance.load.in_flight(), instance.load.queued_tokens()), (2, 10));
        drop(second);
        drop(first);
        assert_eq!((instance.load.in_flight(), instance.load.queued_tokens()), (0, 0));
    }

    #[test]
    fn an_unknown_kv_usage_is_negative() {
        let load = Load::default();
        assert!(load.kv_usage() < 0.0);
        load.report(1, 2, Some(0.0));
        assert!(load.kv_usage().abs() < f32::EPSILON);
        load.report(1, 2, Some(f32::NAN));
        assert!(load.kv_usage() < 0.0);
    }
}
