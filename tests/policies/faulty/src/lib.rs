//! A policy that fails as its configuration says, and abstains otherwise. The
//! router's tests show with it that a faulty policy never costs a request.
//!
//! ```json
//! {"hook": "schedule", "fault": "trap", "every": 3}
//! ```
//!
//! Every third call of that hook fails, beginning with the third; without `every`
//! each one does, the trial calls at loading included.

use edge_router_policy::{
    Candidates, Instance, Leg, Manifest, Outcome, Pair, Phase, Policy, PolicyError, Request, Target,
    parse_config,
};

use fault::Fault;

mod fault;

/// Counts the calls of one hook.
pub struct Faulty {
    config: Config,
    calls: u64,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    hook: Hook,
    fault: Fault,
    #[serde(default = "each_one")]
    every: u64,
}

fn each_one() -> u64 {
    1
}

#[derive(serde::Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Hook {
    Configure,
    InstancesChanged,
    Schedule,
    RewritePrefill,
    MergeKvParams,
    Observe,
    Restore,
}

impl Policy for Faulty {
    fn configure(config: &str) -> Result<Self, PolicyError> {
        let config: Config = parse_config(config)?;
        if config.every == 0 {
            return Err("`every` must be at least 1".into());
        }
        let mut policy = Self { config, calls: 0 };
        policy.fault_at(Hook::Configure).map_or(Ok(()), Fault::happen)?;
        Ok(policy)
    }

    fn manifest(&self) -> Manifest {
        let manifest = Manifest::new("faulty", env!("CARGO_PKG_VERSION"));
        if self.config.hook == Hook::Observe { manifest.with_outcomes() } else { manifest }
    }

    fn instances_changed(&mut self, _instances: &[Instance]) {
        // There is no error to return.
        let _ = self.fault_at(Hook::InstancesChanged).map(Fault::happen);
    }

    fn schedule(
        &mut self,
        _phase: Phase,
        _request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        self.fault_at(Hook::Schedule).map_or(Ok(None), |fault| fault.decide(candidates))
    }

    fn rewrite_prefill(&mut self, request: &Request<'_>, _pair: Pair) -> Result<Option<Leg>, PolicyError> {
        self.fault_at(Hook::RewritePrefill).map_or(Ok(None), |fault| fault.shape(request))
    }

    fn merge_kv_params(
        &mut self,
        request: &Request<'_>,
        _pair: Pair,
        _kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        self.fault_at(Hook::MergeKvParams).map_or(Ok(None), |fault| fault.shape(request))
    }

    fn observe(&mut self, _outcomes: &[Outcome]) {
        // There is no error to return.
        let _ = self.fault_at(Hook::Observe).map(Fault::happen);
    }

    fn snapshot(&self) -> Vec<u8> {
        b"faulty".to_vec()
    }

    fn restore(&mut self, _snapshot: &[u8]) -> Result<(), PolicyError> {
        self.fault_at(Hook::Restore).map_or(Ok(()), Fault::happen)
    }
}

impl Faulty {
    /// The fault, if it is this hook's turn to have it.
    fn fault_at(&mut self, hook: Hook) -> Option<Fault> {
        if hook != self.config.hook {
            return None;
        }
        self.calls += 1;
        self.calls.is_multiple_of(self.config.every).then_some(self.config.fault)
    }
}

edge_router_policy::export!(Faulty);

#[cfg(test)]
mod tests;
