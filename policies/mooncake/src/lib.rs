//! The Mooncake connector: decode fetches the KV cache from the engine that its
//! leg names, and finds that one through prefill's bootstrap server.

use std::collections::HashMap;

use edge_router_policy::connectors::mooncake::{Consumer, Producer, Transfer, Unfit};
use edge_router_policy::connectors::{plain, prefill_answer};
use edge_router_policy::{
    Handoff, Instance, InstanceId, Leg, Manifest, Pair, Placement, Policy, PolicyError, Request, parse_config,
};

/// Shapes the legs; leaves it to others where they go.
pub struct Mooncake {
    config: Config,
    parts: HashMap<InstanceId, Parts>,
}

/// See README.md for what each is good for.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    concurrent: bool,
}

/// What an instance can take part in.
struct Parts {
    producer: Result<Producer, Unfit>,
    consumer: Result<Consumer, Unfit>,
}

impl Policy for Mooncake {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        Ok(Self { config: parse_config(config)?, parts: HashMap::new() })
    }

    fn manifest(&self) -> Manifest {
        let handoff = if self.config.concurrent { Handoff::Concurrent } else { Handoff::Serial };
        edge_router_policy::manifest!().with_handoff(handoff)
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        let parts = |instance| Parts { producer: Producer::of(instance), consumer: Consumer::of(instance) };
        self.parts = instances.iter().map(|instance| (instance.id, parts(instance))).collect();
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, pair: Pair) -> Result<Option<Leg>, PolicyError> {
        Ok(Some(match self.transfer(request, pair) {
            Ok(transfer) => transfer.prefill_leg(request),
            // Not an error: the next policy in the chain may be for another
            // connector, and a Mooncake engine that is asked in that one's way
            // can die of it. The error is told when the legs are merged.
            Err(_) => plain::prefill_leg(request),
        }))
    }

    /// Prefill returns no params, so that the given ones say nothing.
    fn merge_kv_params(
        &mut self,
        request: &Request<'_>,
        pair: Pair,
        _: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        let transfer = self.transfer(request, pair)?;
        let consumer = self.parts(pair.decode)?.consumer.as_ref().map_err(told)?;
        let starts_together = self.config.concurrent && !prefill_answer::has_arrived(request);
        let is_there = starts_together || prefill_answer::ended_by_length(request);
        Ok(Some(if is_there { transfer.decode_leg(consumer) } else { Leg::new() }))
    }
}

impl Mooncake {
    fn transfer(&self, request: &Request<'_>, pair: Pair) -> Result<Transfer<'_>, PolicyError> {
        let prefill = pair.prefill.ok_or("no prefill instance was chosen")?;
        let producer = self.parts(Some(prefill))?.producer.as_ref().map_err(told)?;
        Transfer::new(&request.id(), prefill, producer).map_err(told)
    }

    fn parts(&self, placement: Option<Placement>) -> Result<&Parts, PolicyError> {
        let placement = placement.ok_or("no instance was chosen")?;
        let gone = || format!("instance {} has left the fleet", placement.instance);
        Ok(self.parts.get(&placement.instance).ok_or_else(gone)?)
    }
}

fn told(error: impl std::error::Error) -> PolicyError {
    PolicyError::new(error.to_string())
}

edge_router_policy::export!(Mooncake);

#[cfg(test)]
mod tests;
