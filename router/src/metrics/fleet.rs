//! Metrics of instances, read when they are asked for: a gauge that is computed can't drift.

use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::fleet::{Fleet, Instance, role_name};

/// Reads the fleet.
#[derive(Debug)]
pub(super) struct FleetCollector(Weak<Fleet>);

impl FleetCollector {
    pub(super) fn new(fleet: &Arc<Fleet>) -> Self {
        Self(Arc::downgrade(fleet))
    }
}

type Read = fn(&Instance) -> f64;

const GAUGES: [(&str, &str, Read); 4] = [
    ("instance_healthy", "1 if the instance may be chosen", |i| f64::from(u8::from(i.health().is_healthy()))),
    ("instance_in_flight", "Requests of this router on the instance", |i| f64::from(i.load().in_flight())),
    ("instance_queued_tokens", "Estimated prompt tokens of those that wait for their first byte", |i| {
        f64::from(i.load().queued_tokens())
    }),
    ("instance_failures", "Failures since the last success", |i| f64::from(i.health().failures())),
];

impl Collector for FleetCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(fleet) = self.0.upgrade() else { return Ok(()) };
        let snapshot = fleet.snapshot();
        for (name, help, read) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for instance in &snapshot.instances {
                let labels = [("instance", instance.address()), ("role", role_name(instance.spec().role))];
                ConstGauge::new(read(instance)).encode(family.encode_family(&labels)?)?;
            }
        }
        let blocks = ConstGauge::new(i64::try_from(fleet.prefixes().len()).unwrap_or(i64::MAX));
        let gauge = encoder.encode_descriptor(
            "prefix_index_blocks",
            "Blocks in the prefix index",
            None,
            blocks.metric_type(),
        )?;
        blocks.encode(gauge)
    }
}
