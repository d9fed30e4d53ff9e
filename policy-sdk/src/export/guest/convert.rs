//! Between the types of the contract and those of this crate. Columns and
//! strings are moved, never copied.

use super::bindings::edge_router::policy::types as wit;
use crate::{
    Candidates, Edit, Facts, Handoff, Instance, Leg, Manifest, Outcome, Pair, Phase, Placement, ResultClass,
    Role, Target,
};

impl From<wit::Phase> for Phase {
    fn from(phase: wit::Phase) -> Self {
        match phase {
            wit::Phase::Encode => Self::Encode,
            wit::Phase::Prefill => Self::Prefill,
            wit::Phase::Decode => Self::Decode,
        }
    }
}

impl From<wit::Role> for Role {
    fn from(role: wit::Role) -> Self {
        match role {
            wit::Role::Encode => Self::Encode,
            wit::Role::Prefill => Self::Prefill,
            wit::Role::Decode => Self::Decode,
            wit::Role::Both => Self::Both,
            wit::Role::Render => Self::Render,
        }
    }
}

impl From<wit::Instance> for Instance {
    fn from(instance: wit::Instance) -> Self {
        let wit::Instance { id, role, address, dp_size, tp_size, labels } = instance;
        Self { id, role: role.into(), address, dp_size, tp_size, labels }
    }
}

impl From<wit::Candidates> for Candidates {
    fn from(columns: wit::Candidates) -> Self {
        Self {
            ids: columns.ids,
            in_flight: columns.in_flight,
            queued_tokens: columns.queued_tokens,
            running: columns.running,
            waiting: columns.waiting,
            kv_usage: columns.kv_usage,
            cached_tokens: columns.cached_tokens,
            ttft_ms: columns.ttft_ms,
            failures: columns.failures,
        }
    }
}

impl From<wit::Placement> for Placement {
    fn from(placement: wit::Placement) -> Self {
        Self { instance: placement.instance, dp_rank: placement.dp_rank }
    }
}

impl From<wit::Pair> for Pair {
    fn from(pair: wit::Pair) -> Self {
        Self { prefill: pair.prefill.map(Into::into), decode: pair.decode.map(Into::into) }
    }
}

impl From<wit::ResultClass> for ResultClass {
    fn from(class: wit::ResultClass) -> Self {
        match class {
            wit::ResultClass::Ok => Self::Ok,
            wit::ResultClass::Refused => Self::Refused,
            wit::ResultClass::EngineFailed => Self::EngineFailed,
            wit::ResultClass::TimedOut => Self::TimedOut,
            wit::ResultClass::Cancelled => Self::Cancelled,
        }
    }
}

impl From<wit::Outcome> for Outcome {
    fn from(outcome: wit::Outcome) -> Self {
        Self {
            prefill: outcome.prefill.map(Into::into),
            decode: outcome.decode.map(Into::into),
            class: outcome.class.into(),
            status: outcome.status,
            ttft_ms: outcome.ttft_ms,
            duration_ms: outcome.duration_ms,
            prompt_tokens: outcome.prompt_tokens,
            completion_tokens: outcome.completion_tokens,
            cached_tokens: outcome.cached_tokens,
        }
    }
}

impl From<Target> for wit::Target {
    fn from(target: Target) -> Self {
        Self { instance: target.instance, dp_rank: target.dp_rank, reason: target.reason }
    }
}

impl From<Leg> for wit::Leg {
    fn from(leg: Leg) -> Self {
        Self { edits: leg.edits.into_iter().map(Into::into).collect(), headers: leg.headers }
    }
}

impl From<Edit> for wit::Edit {
    fn from(edit: Edit) -> Self {
        match edit {
            Edit::Set { name, value } => {
                Self::Set(wit::FieldValue { name: name.into_owned(), value: value.into_owned() })
            }
            Edit::Remove(name) => Self::Remove(name.into_owned()),
        }
    }
}

impl From<Manifest> for wit::Manifest {
    fn from(manifest: Manifest) -> Self {
        Self {
            name: manifest.name,
            version: manifest.version,
            handoff: manifest.handoff.map(Into::into),
            facts: manifest.facts.into(),
        }
    }
}

impl From<Handoff> for wit::Handoff {
    fn from(handoff: Handoff) -> Self {
        match handoff {
            Handoff::Serial => Self::Serial,
            Handoff::SerialPaired => Self::SerialPaired,
            Handoff::Concurrent => Self::Concurrent,
        }
    }
}

impl From<Facts> for wit::Facts {
    fn from(facts: Facts) -> Self {
        let when = |asked: bool, flag: Self| if asked { flag } else { Self::empty() };
        when(facts.cached_tokens, Self::CACHED_TOKENS)
            | when(facts.prefix_blocks, Self::PREFIX_BLOCKS)
            | when(facts.outcomes, Self::OUTCOMES)
    }
}
