//! Prefill goes to the instance that holds most of the prompt in its KV cache,
//! unless that is much busier than the others.

use std::cmp::Reverse;

use edge_router_policy::{
    Candidate, Candidates, Manifest, Phase, Policy, PolicyError, Random, Request, Target,
};

use config::Config;

mod config;

/// A function of the figures of the moment: which prefixes are cached where is
/// the router's knowledge.
pub struct CacheAware {
    config: Config,
    random: Random,
}

impl Policy for CacheAware {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        Ok(Self { config: Config::read(config)?, random: Random::new() })
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!().with_cached_tokens()
    }

    fn schedule(
        &mut self,
        phase: Phase,
        request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        Ok(match phase {
            Phase::Prefill => self.prefill(request.prompt_tokens(), candidates),
            // Decode fetches the KV cache from prefill; only load counts.
            Phase::Encode | Phase::Decode => candidates
                .min_by_key(|candidate| (requests(candidate), self.random.next_u32()))
                .map(|least| Target::new(least.id, format!("least loaded: {} requests", least.requests()))),
        })
    }
}

impl CacheAware {
    fn prefill(&mut self, prompt_tokens: u32, candidates: &Candidates) -> Option<Target> {
        let Self { config, random } = self;
        let limits = Limits::of(config, candidates)?;
        let is_worth_it = |candidate: &Candidate| {
            config.is_useful(candidate.cached_tokens, prompt_tokens) && limits.allow(candidate)
        };
        let best = candidates.iter().filter(is_worth_it).min_by_key(|candidate| {
            (Reverse(candidate.cached_tokens), work_ahead(candidate), random.next_u32())
        });
        if let Some(best) = best {
            return Some(Target::new(best.id, format!("cached {} of {prompt_tokens}", best.cached_tokens)));
        }
        let least = candidates.min_by_key(|candidate| (work_ahead(candidate), random.next_u32()))?;
        Some(Target::new(least.id, format!("least queued: {} tokens", least.queued_tokens)))
    }
}

/// How busy an instance may be for its cache to be worth waiting for, in
/// relation to the least busy one.
struct Limits {
    requests: f64,
    queued_tokens: f64,
}

impl Limits {
    /// `None` without candidates.
    fn of(config: &Config, candidates: &Candidates) -> Option<Self> {
        let limit = |least: u64, abs: u32| {
            let least = least as f64;
            (least + f64::from(abs)).max(least * config.balance_rel)
        };
        Some(Self {
            requests: limit(candidates.iter().map(|c| requests(&c)).min()?, config.balance_abs),
            queued_tokens: limit(
                candidates.iter().map(|c| u64::from(c.queued_tokens)).min()?,
                config.balance_tokens_abs,
            ),
        })
    }

    fn allow(&self, candidate: &Candidate) -> bool {
        requests(candidate) as f64 <= self.requests
            && f64::from(candidate.queued_tokens) <= self.queued_tokens
    }
}

/// An instance that fails fast looks idle: each consecutive failure counts like
/// one more request.
fn requests(candidate: &Candidate) -> u64 {
    u64::from(candidate.requests()) + u64::from(candidate.failures)
}

/// What a new prompt would wait for.
fn work_ahead(candidate: &Candidate) -> (u32, u64) {
    (candidate.queued_tokens, requests(candidate))
}

edge_router_policy::export!(CacheAware);

#[cfg(test)]
mod tests;
