//! The instance with the least work ahead.

use edge_router_policy::{
    Candidate, Candidates, Manifest, Phase, Policy, PolicyError, Random, Request, Target, parse_config,
};

/// Knows nothing but the figures of the moment, and how to break ties.
pub struct LeastLoaded {
    config: Config,
    random: Random,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    choices: Option<usize>,
}

impl Policy for LeastLoaded {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        let config: Config = parse_config(config)?;
        if config.choices.is_some_and(|choices| choices < 2) {
            return Err("`choices` must be at least 2: the less loaded one of so many is chosen".into());
        }
        Ok(Self { config, random: Random::new() })
    }

    fn manifest(&self) -> Manifest {
        edge_router_policy::manifest!()
    }

    fn schedule(
        &mut self,
        phase: Phase,
        request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        let prompt_tokens = request.prompt_tokens();
        let work = |candidate: &Candidate| work_ahead(phase, prompt_tokens, candidate);
        let least = match self.config.choices {
            Some(choices) if choices < candidates.len() => {
                self.sample(candidates, choices).into_iter().min_by_key(work)
            }
            // A random number breaks ties, lest an idle fleet's first instance
            // gets every request.
            _ => candidates.min_by_key(|candidate| (work(candidate), self.random.next_u32())),
        };
        Ok(least.map(|least| Target::new(least.id, reason(phase, &least))))
    }
}

impl LeastLoaded {
    /// So many different candidates at random.
    fn sample(&mut self, candidates: &Candidates, choices: usize) -> Vec<Candidate> {
        let mut rows: Vec<_> = candidates.iter().collect();
        for drawn in 0..choices {
            if let Some(offset) = self.random.below(rows.len() - drawn) {
                rows.swap(drawn, drawn + offset);
            }
        }
        rows.truncate(choices);
        rows
    }
}

/// What a new request would wait for. Prefill takes as long as the prompts
/// ahead are; decode runs requests side by side, so it is their number.
///
/// An instance that fails fast looks idle: each consecutive failure counts like
/// one more such request.
fn work_ahead(phase: Phase, prompt_tokens: u32, candidate: &Candidate) -> (u64, u64) {
    let failures = u64::from(candidate.failures);
    let requests = u64::from(candidate.requests()) + failures;
    let tokens = u64::from(candidate.queued_tokens) + failures * u64::from(prompt_tokens);
    match phase {
        Phase::Prefill => (tokens, requests),
        Phase::Encode | Phase::Decode => (requests, tokens),
    }
}

fn reason(phase: Phase, least: &Candidate) -> String {
    match phase {
        Phase::Prefill => format!("least queued: {} tokens", least.queued_tokens),
        Phase::Encode | Phase::Decode => format!("least loaded: {} requests", least.requests()),
    }
}

edge_router_policy::export!(LeastLoaded);

#[cfg(test)]
mod tests;
