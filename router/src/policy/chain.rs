//! The policies in the order in which they were given. For each hook the first that does not abstain
//! decides; the built-in comes last.

use std::sync::{Arc, Mutex, PoisonError};

use edge_router_policy::{Facts, Handoff, Pair, Phase, Placement, Policy as _, PolicyError, Request, Target};

use super::Hook;
use super::builtin::BuiltIn;
use super::facts::RequestFacts;
use super::instance::Fault;
use super::leg::{self, CheckedLeg};
use super::slot::Slot;
use crate::fleet::{Choice, Instance, Snapshot};

/// A trace must stay readable.
const MAX_REASON: usize = 128;

/// Name of the built-in policy in logs and metrics.
const BUILT_IN: &str = "builtin";

/// A decision, and who made it.
#[derive(Debug)]
pub struct Decided<T> {
    /// The decision.
    pub value: T,
    /// Name of the policy.
    pub by: Arc<str>,
    /// Whether no policy that was given made it.
    pub built_in: bool,
}

/// A scheduling decision that can be carried out.
#[derive(Debug)]
pub struct Chosen {
    /// Where to.
    pub instance: Arc<Instance>,
    /// Which data-parallel rank of it.
    pub dp_rank: Option<u32>,
    /// Why, in the policy's words.
    pub reason: String,
}

impl Chosen {
    /// As policies are told of it.
    pub fn placement(&self) -> Placement {
        Placement { instance: self.instance.id(), dp_rank: self.dp_rank }
    }
}

/// All policies of the router.
#[derive(Debug)]
pub struct Chain {
    slots: Vec<Arc<Slot>>,
    builtin: Mutex<(BuiltIn, u64)>,
    builtin_name: Arc<str>,
}

impl Chain {
    /// A chain of `slots` and the built-in policy.
    ///
    /// # Errors
    /// None in practice: the built-in takes an empty configuration.
    pub fn new(slots: Vec<Arc<Slot>>) -> Result<Self, PolicyError> {
        let builtin = Mutex::new((BuiltIn::configure("{}")?, 0));
        Ok(Self { slots, builtin, builtin_name: BUILT_IN.into() })
    }

    /// The policies before the built-in.
    pub fn slots(&self) -> &[Arc<Slot>] {
        &self.slots
    }

    /// What the policies want to know, taken together.
    pub fn facts(&self) -> Facts {
        self.slots.iter().fold(Facts::NONE, |facts, slot| facts.union(slot.facts()))
    }

    /// The first policy's choice that makes one; serial otherwise.
    pub fn handoff(&self) -> Handoff {
        self.slots.iter().find_map(|slot| slot.handoff()).unwrap_or(Handoff::Serial)
    }

    /// Chooses among `choice`, which must not be empty. `None` only if it is.
    pub fn schedule(
        &self,
        phase: Phase,
        facts: &Arc<RequestFacts>,
        choice: &Choice,
        fleet: &Snapshot,
    ) -> Option<Decided<Chosen>> {
        let decided = self.first(Hook::Schedule, fleet, |running| {
            let target = running.schedule(phase, facts, &choice.candidates)?;
            target.map(|target| chosen(choice, target)).transpose()
        });
        decided.or_else(|| {
            let target = self.built_in(fleet, |policy| {
                policy.schedule(phase, &Request::new(&**facts), &choice.candidates)
            });
            let value = chosen(choice, target.ok()??).ok()?;
            Some(Decided { value, by: Arc::clone(&self.builtin_name), built_in: true })
        })
    }

    /// How the prefill leg differs from the client's request.
    pub fn rewrite_prefill(
        &self,
        facts: &Arc<RequestFacts>,
        pair: Pair,
        fleet: &Snapshot,
    ) -> Decided<CheckedLeg> {
        let decided = self.first(Hook::RewritePrefill, fleet, |running| {
            running.rewrite_prefill(facts, pair)?.map(leg::check).transpose()
        });
        decided.unwrap_or_else(|| {
            let leg = self.built_in(fleet, |policy| policy.rewrite_prefill(&Request::new(&**facts), pair));
            self.built_in_leg(leg)
        })
    }

    /// How the decode leg differs from the client's request.
    pub fn merge_kv_params(
        &self,
        facts: &Arc<RequestFacts>,
        pair: Pair,
        kv_params: Option<&str>,
        fleet: &Snapshot,
    ) -> Decided<CheckedLeg> {
        let decided = self.first(Hook::MergeKvParams, fleet, |running| {
            running.merge_kv_params(facts, pair, kv_params)?.map(leg::check).transpose()
        });
        decided.unwrap_or_else(|| {
            let leg = self
                .built_in(fleet, |policy| policy.merge_kv_params(&Request::new(&**facts), pair, kv_params));
            self.built_in_leg(leg)
        })
    }

    /// Tells the policies that asked what became of requests.
    pub fn observe(&self, outcomes: &[edge_router_policy::Outcome], fleet: &Snapshot) {
        for slot in self.slots.iter().filter(|slot| slot.facts().outcomes) {
            slot.call(Hook::Observe, fleet, |running| running.observe(outcomes).map(Some));
        }
    }

    fn first<T>(
        &self,
        hook: Hook,
        fleet: &Snapshot,
        call: impl Fn(&mut super::instance::Running) -> Result<Option<T>, Fault>,
    ) -> Option<Decided<T>> {
        self.slots.iter().find_map(|slot| {
            let value = slot.call(hook, fleet, &call)?;
            Some(Decided { value, by: Arc::clone(&slot.name), built_in: false })
        })
    }

    fn built_in<T>(&self, fleet: &Snapshot, call: impl FnOnce(&mut BuiltIn) -> T) -> T {
        let mut guard = self.builtin.lock().unwrap_or_else(PoisonError::into_inner);
        let (policy, generation) = &mut *guard;
        if *generation != fleet.generation {
            *generation = fleet.generation;
            policy.instances_changed(&fleet.instances.iter().map(|i| i.described()).collect::<Vec<_>>());
        }
        call(policy)
    }

    fn built_in_leg(&self, leg: Result<Option<edge_router_policy::Leg>, PolicyError>) -> Decided<CheckedLeg> {
        // The built-in neither abstains nor fails, and sets no headers; a plain leg would be right if it did.
        let edits = leg.ok().flatten().unwrap_or_default().edits;
        let value = CheckedLeg { edits, headers: Vec::new() };
        Decided { value, by: Arc::clone(&self.builtin_name), built_in: true }
    }
}

fn chosen(choice: &Choice, target: Target) -> Result<Chosen, Fault> {
    let Some(instance) = choice.get(target.instance) else {
        return Err(Fault::BadDecision(format!("instance {} is not among the candidates", target.instance)));
    };
    let dp_size = instance.spec().dp_size;
    if let Some(rank) = target.dp_rank.filter(|rank| *rank >= dp_size) {
        return Err(Fault::BadDecision(format!(
            "DP rank {rank} of {}, which has {dp_size}",
            instance.address()
        )));
    }
    let mut reason = target.reason;
    if let Some((end, _)) = reason.char_indices().find(|(at, c)| at + c.len_utf8() > MAX_REASON) {
        reason.truncate(end);
    }
    Ok(Chosen { instance: Arc::clone(instance), dp_rank: target.dp_rank, reason })
}
