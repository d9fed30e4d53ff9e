//! What a policy may choose from.

use std::sync::Arc;

use edge_router_policy::{Candidate, Candidates, InstanceId, Phase};

use super::{Instance, Snapshot};

/// The candidates for one decision: columns for the policy, and the instances behind them.
#[derive(Debug)]
pub struct Choice {
    /// What the policy sees.
    pub candidates: Candidates,
    instances: Vec<Arc<Instance>>,
}

impl Choice {
    /// The instance that a policy named, if it was one of the candidates.
    pub fn get(&self, id: InstanceId) -> Option<&Arc<Instance>> {
        self.instances.iter().find(|i| i.id() == id)
    }

    /// Leaves one candidate, or none if it is not among them.
    pub fn keep_only(&mut self, id: InstanceId) {
        let row = self.candidates.iter().find(|candidate| candidate.id == id);
        self.candidates = Candidates::default();
        row.into_iter().for_each(|row| self.candidates.push(row));
        self.instances.retain(|i| i.id() == id);
    }

    /// Whether there is nothing to choose from.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }
}

/// A prompt's place in the prefix index.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// The index.
    pub index: &'a super::PrefixIndex,
    /// The prompt's chained block hashes.
    pub blocks: &'a [u64],
    /// Tokens of one block.
    pub block_tokens: usize,
}

impl Snapshot {
    /// Instances that can take `phase` now, without those in `tried`.
    pub fn available(&self, phase: Phase, tried: &[InstanceId]) -> impl Iterator<Item = &Arc<Instance>> {
        self.serving(phase).filter(|i| i.is_available() && !tried.contains(&i.id()))
    }

    /// Instances that can take `phase` now, without those in `tried`. The cached-token column is filled
    /// if `prefix` is given.
    pub fn choice(&self, phase: Phase, tried: &[InstanceId], prefix: Option<Prefix<'_>>) -> Choice {
        let instances: Vec<_> = self.available(phase, tried).cloned().collect();
        let mut candidates = Candidates::default();
        for instance in &instances {
            candidates.push(row(instance));
        }
        if let Some(prefix) = prefix {
            let blocks = prefix.index.matches(prefix.blocks, &candidates.ids);
            candidates.cached_tokens = blocks
                .into_iter()
                .map(|b| u32::try_from(b * prefix.block_tokens).unwrap_or(u32::MAX))
                .collect();
        }
        Choice { candidates, instances }
    }
}

fn row(instance: &Instance) -> Candidate {
    let load = instance.load();
    Candidate {
        id: instance.id(),
        in_flight: load.in_flight(),
        queued_tokens: load.queued_tokens(),
        running: load.running(),
        waiting: load.waiting(),
        kv_usage: load.kv_usage(),
        cached_tokens: 0,
        ttft_ms: load.ttft_ms(),
        failures: instance.health().failures(),
    }
}
