//! A policy with a fleet, as the router would run it.

use crate::{Phase, Policy, Target};

use super::{Fleet, TestRequest};

/// A configured policy and the fleet that it knows; made by [`load`].
#[derive(Debug)]
pub struct Run<P> {
    policy: P,
    fleet: Fleet,
}

/// Configures a policy and shows it the fleet.
///
/// # Panics
///
/// When the policy refuses the configuration.
pub fn load<P: Policy>(config: &str, fleet: Fleet) -> Run<P> {
    match P::configure(config) {
        Ok(mut policy) => {
            policy.instances_changed(&fleet.instances());
            Run { policy, fleet }
        }
        Err(error) => panic!("the policy refused its configuration: {error}"),
    }
}

impl<P: Policy> Run<P> {
    /// The policy, to call its other hooks.
    pub fn policy(&mut self) -> &mut P {
        &mut self.policy
    }

    /// The fleet, to change the load of an instance.
    pub fn fleet(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    /// Changes which instances there are, and tells the policy.
    pub fn change_fleet(&mut self, change: impl FnOnce(Fleet) -> Fleet) {
        self.fleet = change(std::mem::take(&mut self.fleet));
        self.policy.instances_changed(&self.fleet.instances());
    }

    /// The policy's decision among all instances that serve the phase; `None`
    /// when it abstains.
    ///
    /// # Panics
    ///
    /// When the policy fails, or decides what the router would refuse.
    pub fn schedule(&mut self, phase: Phase, request: &TestRequest) -> Option<Target> {
        let candidates = self.fleet.candidates(phase);
        let decision = self.policy.schedule(phase, &request.as_request(), &candidates);
        let target = decision.unwrap_or_else(|error| panic!("the policy failed: {error}"))?;
        assert!(candidates.ids.contains(&target.instance), "not among the candidates: {target:?}");
        if let Some(rank) = target.dp_rank {
            let instance = self.fleet.instances().into_iter().find(|i| i.id == target.instance);
            assert!(instance.is_some_and(|i| rank < i.dp_size), "no such data-parallel rank: {target:?}");
        }
        Some(target)
    }

    /// The address of the instance that the policy chooses; `None` when it
    /// abstains.
    ///
    /// # Panics
    ///
    /// As [`schedule`](Self::schedule).
    pub fn pick(&mut self, phase: Phase, request: &TestRequest) -> Option<String> {
        let target = self.schedule(phase, request)?;
        self.fleet.address(target.instance).map(str::to_owned)
    }
}
