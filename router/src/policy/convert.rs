//! Between the SDK's types, which the router uses, and those of the bindings. The only place that
//! knows both.

use edge_router_policy as sdk;

use super::bindings::edge_router::policy::types as wit;

pub(super) fn phase(phase: sdk::Phase) -> wit::Phase {
    match phase {
        sdk::Phase::Encode => wit::Phase::Encode,
        sdk::Phase::Prefill => wit::Phase::Prefill,
        sdk::Phase::Decode => wit::Phase::Decode,
    }
}

fn role(role: sdk::Role) -> wit::Role {
    match role {
        sdk::Role::Encode => wit::Role::Encode,
        sdk::Role::Prefill => wit::Role::Prefill,
        sdk::Role::Decode => wit::Role::Decode,
        sdk::Role::Both => wit::Role::Both,
        sdk::Role::Render => wit::Role::Render,
    }
}

pub(super) fn instance(instance: &sdk::Instance) -> wit::Instance {
    wit::Instance {
        id: instance.id,
        role: role(instance.role),
        address: instance.address.clone(),
        dp_size: instance.dp_size,
        tp_size: instance.tp_size,
        labels: instance.labels.clone(),
    }
}

pub(super) fn candidates(candidates: &sdk::Candidates) -> wit::Candidates {
    wit::Candidates {
        ids: candidates.ids.clone(),
        in_flight: candidates.in_flight.clone(),
        queued_tokens: candidates.queued_tokens.clone(),
        running: candidates.running.clone(),
        waiting: candidates.waiting.clone(),
        kv_usage: candidates.kv_usage.clone(),
        cached_tokens: candidates.cached_tokens.clone(),
        ttft_ms: candidates.ttft_ms.clone(),
        failures: candidates.failures.clone(),
    }
}

fn placement(placement: sdk::Placement) -> wit::Placement {
    wit::Placement { instance: placement.instance, dp_rank: placement.dp_rank }
}

pub(super) fn pair(pair: sdk::Pair) -> wit::Pair {
    wit::Pair { prefill: pair.prefill.map(placement), decode: pair.decode.map(placement) }
}

pub(super) fn outcome(outcome: &sdk::Outcome) -> wit::Outcome {
    wit::Outcome {
        prefill: outcome.prefill.map(placement),
        decode: outcome.decode.map(placement),
        class: match outcome.class {
            sdk::ResultClass::Ok => wit::ResultClass::Ok,
            sdk::ResultClass::Refused => wit::ResultClass::Refused,
            sdk::ResultClass::EngineFailed => wit::ResultClass::EngineFailed,
            sdk::ResultClass::TimedOut => wit::ResultClass::TimedOut,
            sdk::ResultClass::Cancelled => wit::ResultClass::Cancelled,
        },
        status: outcome.status,
        ttft_ms: outcome.ttft_ms,
        duration_ms: outcome.duration_ms,
        prompt_tokens: outcome.prompt_tokens,
        completion_tokens: outcome.completion_tokens,
        cached_tokens: outcome.cached_tokens,
    }
}

pub(super) fn target(target: wit::Target) -> sdk::Target {
    sdk::Target { instance: target.instance, dp_rank: target.dp_rank, reason: target.reason }
}

pub(super) fn leg(leg: wit::Leg) -> sdk::Leg {
    let edits = leg.edits.into_iter().map(|edit| match edit {
        wit::Edit::Set(field) => sdk::Edit::Set { name: field.name.into(), value: field.value.into() },
        wit::Edit::Remove(name) => sdk::Edit::Remove(name.into()),
    });
    sdk::Leg { edits: edits.collect(), headers: leg.headers }
}

pub(super) fn manifest(manifest: wit::Manifest) -> sdk::Manifest {
    sdk::Manifest {
        name: manifest.name,
        version: manifest.version,
        handoff: manifest.handoff.map(|handoff| match handoff {
            wit::Handoff::Serial => sdk::Handoff::Serial,
            wit::Handoff::SerialPaired => sdk::Handoff::SerialPaired,
            wit::Handoff::Concurrent => sdk::Handoff::Concurrent,
        }),
        facts: sdk::Facts {
            cached_tokens: manifest.facts.contains(wit::Facts::CACHED_TOKENS),
            prefix_blocks: manifest.facts.contains(wit::Facts::PREFIX_BLOCKS),
            outcomes: manifest.facts.contains(wit::Facts::OUTCOMES),
        },
    }
}
