//! Instances take turns, in a way that stays fair while the fleet changes.

use std::collections::BTreeSet;

use edge_router_policy::{
    Candidates, Instance, InstanceId, Manifest, Phase, Policy, PolicyError, Request, Target, parse_config,
};

/// Turns per phase, so that the phases don't steal each other's.
pub struct RoundRobin {
    encode: Turns,
    prefill: Turns,
    decode: Turns,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {}

impl Policy for RoundRobin {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        let Config {} = parse_config(config)?;
        Ok(Self {
            encode: Turns::default(),
            prefill: Turns::default(),
            // Else, with as many prefill as decode instances, each of them
            // would only ever meet one partner.
            decode: Turns { drift: 1, ..Turns::default() },
        })
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!()
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        let here: BTreeSet<_> = instances.iter().map(|instance| instance.id).collect();
        for turns in [&mut self.encode, &mut self.prefill, &mut self.decode] {
            turns.served.retain(|id| here.contains(id));
        }
    }

    fn schedule(
        &mut self,
        phase: Phase,
        _request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        let turns = match phase {
            Phase::Encode => &mut self.encode,
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        };
        Ok(turns.next(&candidates.ids).map(|id| Target::new(id, "its turn")))
    }
}

/// Rounds in which every candidate is chosen once. Who joins or comes back gets
/// one turn in the current round and no backlog; who leaves is skipped.
#[derive(Default)]
struct Turns {
    round: usize,
    /// By how many places the first of each round lies behind the one before.
    drift: usize,
    served: BTreeSet<InstanceId>,
}

impl Turns {
    fn next(&mut self, candidates: &[InstanceId]) -> Option<InstanceId> {
        if candidates.iter().all(|id| self.served.contains(id)) {
            // Only theirs: another model's candidates are in a round of their
            // own.
            candidates.iter().for_each(|id| {
                self.served.remove(id);
            });
            self.round = self.round.wrapping_add(self.drift);
        }
        let first = self.round.checked_rem(candidates.len())?;
        let (before, from) = candidates.split_at(first);
        let next = from.iter().chain(before).copied().find(|id| !self.served.contains(id))?;
        self.served.insert(next);
        Some(next)
    }
}

edge_router_policy::export!(RoundRobin);

#[cfg(test)]
mod tests;
