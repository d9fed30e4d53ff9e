//! A session stays on its instance, in every router replica and over restarts.

use std::collections::HashMap;

use edge_router_policy::{
    Candidate, Candidates, Instance, InstanceId, Manifest, Phase, Policy, PolicyError, Request, Target,
    parse_config,
};

use rendezvous::{hash, score};

mod rendezvous;

/// Chooses by session key and addresses alone, so there is no table of
/// sessions to keep, share or lose.
pub struct SessionAffinity {
    config: Config,
    /// Hash of each instance's address: ids are new after every restart.
    addresses: HashMap<InstanceId, u64>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    max_load_factor: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_load_factor: 1.25 }
    }
}

impl Policy for SessionAffinity {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        let config: Config = parse_config(config)?;
        if config.max_load_factor != 0.0 && config.max_load_factor < 1.0 {
            return Err(
                "`max_load_factor` must be at least 1: a multiple of the mean load; or 0 for no limit".into(),
            );
        }
        Ok(Self { config, addresses: HashMap::new() })
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!()
    }

    fn instances_changed(&mut self, instances: &[Instance]) {
        self.addresses = instances.iter().map(|i| (i.id, hash(i.address.as_bytes()))).collect();
    }

    fn schedule(
        &mut self,
        _phase: Phase,
        request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        let Some(session) = request.session_key() else { return Ok(None) };
        let session = hash(session.as_bytes());
        let own = |candidate: &Candidate| {
            let address = self.addresses.get(&candidate.id).copied().unwrap_or_default();
            score(session, address)
        };
        let limit = self.load_limit(candidates);
        let home = candidates.iter().max_by_key(own);
        let chosen = candidates.iter().filter(|candidate| load(candidate) < limit).max_by_key(own);
        Ok(chosen.or(home).map(|chosen| {
            let at_home = home.is_some_and(|home| home.id == chosen.id);
            Target::new(
                chosen.id,
                if at_home { "the session's own" } else { "the session's own is too busy" },
            )
        }))
    }
}

impl SessionAffinity {
    /// Load from which on an instance takes no more sessions than its share.
    fn load_limit(&self, candidates: &Candidates) -> u64 {
        if self.config.max_load_factor == 0.0 {
            return u64::MAX;
        }
        // With this request; so on an idle fleet the limit is 1, not 0.
        let total: u64 = candidates.iter().map(|candidate| load(&candidate)).sum::<u64>() + 1;
        let mean = total as f64 / candidates.len() as f64;
        (mean * self.config.max_load_factor).ceil() as u64
    }
}

fn load(candidate: &Candidate) -> u64 {
    u64::from(candidate.requests())
}

edge_router_policy::export!(SessionAffinity);

#[cfg(test)]
mod tests;
