//! Asks the policies for an instance.

use std::sync::Arc;

use edge_router_policy::{InstanceId, Phase};

use super::attempt::Attempt;
use crate::error::{Error, Unavailable};
use crate::fleet::{InFlight, Prefix, Snapshot};
use crate::policy::Chosen;

/// An instance, counted as busy with this request for as long as this exists.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) chosen: Chosen,
    pub(super) in_flight: InFlight,
    /// The policy that chose it.
    pub(super) by: Arc<str>,
}

/// Chooses an instance for `phase` that is not among `tried`.
pub(super) fn schedule(
    attempt: &Attempt<'_>,
    phase: Phase,
    tried: &[InstanceId],
) -> Result<Scheduled, Error> {
    let app = attempt.app;
    let client = &attempt.parsed.client;
    let snapshot = app.fleet.snapshot();
    let facts = app.chain.facts();
    // Counted and hashed before a policy asks: the time that a long prompt takes is not the policy's.
    let prompt_tokens = client.prompt_tokens();
    if facts.prefix_blocks {
        client.blocks();
    }
    let computes = attempt.parsed.generates && phase != Phase::Encode;
    let prefix = (facts.cached_tokens && computes).then(|| Prefix {
        index: app.fleet.prefixes(),
        blocks: client.blocks(),
        block_tokens: client.block_tokens,
    });
    let mut choice = snapshot.choice(phase, tried, prefix);
    if let Some(home) = attempt.parsed.pinned {
        choice.keep_only(home);
    }
    if choice.is_empty() {
        return Err(Error::NoInstance { phase, why: why(&snapshot, phase, tried) });
    }
    let decided = app.chain.schedule(phase, &attempt.facts, &choice, &snapshot);
    let Some(decided) = decided else { return Err(Error::NoInstance { phase, why: Unavailable::None }) };
    let instance = Arc::clone(&decided.value.instance);
    if prefix.is_some() {
        app.fleet.prefixes().insert(client.blocks(), instance.id());
    }
    let in_flight = InFlight::new(instance, prompt_tokens);
    Ok(Scheduled { chosen: decided.value, in_flight, by: decided.by })
}

/// Whether `phase` could be scheduled now.
///
/// # Errors
/// Why not.
pub(super) fn can_schedule(attempt: &Attempt<'_>, phase: Phase, tried: &[InstanceId]) -> Result<(), Error> {
    let snapshot = attempt.app.fleet.snapshot();
    if snapshot.available(phase, tried).next().is_some() {
        return Ok(());
    }
    Err(Error::NoInstance { phase, why: why(&snapshot, phase, tried) })
}

fn why(snapshot: &Snapshot, phase: Phase, tried: &[InstanceId]) -> Unavailable {
    let mut serving = snapshot.serving(phase).peekable();
    if serving.peek().is_none() {
        Unavailable::None
    } else if snapshot.serving(phase).any(|i| i.is_available() && tried.contains(&i.id())) {
        Unavailable::Tried
    } else if serving.any(|i| i.is_saturated()) {
        Unavailable::Saturated
    } else if snapshot.serving(phase).any(|i| i.is_draining() && i.health().is_healthy()) {
        Unavailable::Draining
    } else {
        Unavailable::Unhealthy
    }
}
