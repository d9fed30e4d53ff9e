//! A histogram without a lock: prometheus-client's takes a mutex for each observation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Bounds in seconds, those of vLLM's time to first token, so that boards of both line up.
const BOUNDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// Durations, in buckets.
#[derive(Debug, Clone, Default)]
pub(super) struct Histogram(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub(super) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = BOUNDS.partition_point(|bound| *bound < seconds);
        self.0.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.0.micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = BOUNDS.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.zip(self.0.buckets.iter().map(|b| b.load(Ordering::Relaxed))).collect();
        let count = buckets.iter().map(|(_, n)| n).sum();
        let sum = Duration::from_micros(self.0.micros.load(Ordering::Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn buckets_are_cumulative_in_the_text() {
        let mut registry = Registry::default();
        let histogram = Histogram::default();
        registry.register("wait_seconds", "x", histogram.clone());
        histogram.observe(Duration::from_millis(1));
        histogram.observe(Duration::from_millis(3));
        histogram.observe(Duration::from_secs(9999));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "wait_seconds_bucket{le=\"0.001\"} 1",
            "wait_seconds_bucket{le=\"0.005\"} 2",
            "wait_seconds_bucket{le=\"2560.0\"} 2",
            "wait_seconds_bucket{le=\"+Inf\"} 3",
            "wait_seconds_count 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
