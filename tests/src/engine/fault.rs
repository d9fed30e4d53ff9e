//! Faults that can be set on an engine: which requests they hit, how often, and what then goes wrong.

mod before;
mod outcome;
mod side;
mod wire;

use std::sync::Mutex;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;

pub(crate) use before::{Before, Verdict};
pub(crate) use outcome::Outcome;
pub(crate) use side::Side;
pub(crate) use wire::{Wire, loses, shape};

use crate::lock::lock;

/// Which step of a disaggregated request the engine is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A request with `do_remote_decode`.
    Prefill,
    /// Any other request that generates.
    Decode,
}

/// Something that goes wrong. By default it hits the next request that generates, whichever step, and only that.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    #[serde(flatten)]
    kind: Kind,
    #[serde(default)]
    step: Option<Step>,
    #[serde(default)]
    path: Option<String>,
    /// `null` is for ever.
    #[serde(default = "once")]
    times: Option<u32>,
}

fn once() -> Option<u32> {
    Some(1)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Kind {
    Before(Before),
    Wire(Wire),
    Outcome(Outcome),
    Side(Side),
}

impl Fault {
    fn new(kind: Kind) -> Self {
        Self { kind, step: None, path: None, times: once() }
    }

    /// Only requests for this step.
    pub fn on(self, step: Step) -> Self {
        Self { step: Some(step), ..self }
    }

    /// Only prefill requests (those with `do_remote_decode`).
    pub fn on_prefill(self) -> Self {
        self.on(Step::Prefill)
    }

    /// Only decode requests (all other requests that generate).
    pub fn on_decode(self) -> Self {
        self.on(Step::Decode)
    }

    /// Only requests to this path, `/health` for example; may be one that generates nothing.
    pub fn on_path(self, path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }

    /// The next `times` requests instead of one.
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Every request until [`super::Engine::clear_faults`].
    pub fn always(self) -> Self {
        Self { times: None, ..self }
    }

    fn hits(&self, step: Option<Step>, path: &str) -> bool {
        match &self.path {
            Some(wanted) => wanted == path && (self.step.is_none() || self.step == step),
            None => step.is_some() && (self.step.is_none() || self.step == step),
        }
    }
}

/// All that goes wrong with one request.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) before: Vec<Before>,
    pub(crate) wire: Vec<Wire>,
    pub(crate) outcome: Vec<Outcome>,
}

/// The faults that are set on an engine.
#[derive(Default)]
pub(crate) struct Faults {
    set: Mutex<Vec<Fault>>,
    /// Whoever is held listens here.
    cleared: watch::Sender<()>,
}

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        lock(&self.set).push(fault);
    }

    pub(crate) fn clear(&self) {
        lock(&self.set).clear();
        self.cleared.send_replace(());
    }

    /// Resolves when all faults are cleared.
    pub(crate) async fn cleared(&self) {
        // The sender lives as long as `self`.
        let _ = self.cleared.subscribe().changed().await;
    }

    /// How many requests wait for that now.
    pub(crate) fn held(&self) -> usize {
        self.cleared.receiver_count()
    }

    /// What goes wrong with a request to `path`; uses up one time of each fault that hits it.
    pub(crate) fn plan(&self, step: Option<Step>, path: &str) -> Plan {
        let mut plan = Plan::default();
        self.take(|fault| {
            if !fault.hits(step, path) {
                return false;
            }
            match &fault.kind {
                Kind::Before(before) => plan.before.push(before.clone()),
                Kind::Wire(wire) => plan.wire.push(wire.clone()),
                Kind::Outcome(outcome) => plan.outcome.push(outcome.clone()),
                Kind::Side(_) => return false,
            }
            true
        });
        plan
    }

    /// How long a peer that reads blocks has to wait.
    pub(crate) fn read_delay(&self) -> Duration {
        let mut delay = Duration::ZERO;
        self.take(|fault| match fault.kind {
            Kind::Side(Side::SlowRead { ms }) => {
                delay += Duration::from_millis(ms);
                true
            }
            _ => false,
        });
        delay
    }

    /// Whether the notification that just came is to be lost.
    pub(crate) fn loses_notification(&self) -> bool {
        let mut lost = false;
        self.take(|fault| {
            let hit = matches!(fault.kind, Kind::Side(Side::LostNotification {}));
            lost |= hit;
            hit
        });
        lost
    }

    fn take(&self, mut hit: impl FnMut(&Fault) -> bool) {
        lock(&self.set).retain_mut(|fault| {
            if !hit(fault) {
                return true;
            }
            fault.times = fault.times.map(|times| times.saturating_sub(1));
            fault.times != Some(0)
        });
    }
}

impl Fault {
    /// From the JSON that `POST /sim/fault` takes: `{"status":{"code":503},"step":"decode","times":2}`.
    ///
    /// # Errors
    /// If it names no known fault.
    pub fn from_json(json: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fault_is_used_up() {
        let faults = Faults::default();
        faults.add(Fault::hang().on_decode().times(2));
        assert!(faults.plan(Some(Step::Prefill), "/v1/completions").before.is_empty());
        assert!(faults.plan(None, "/health").before.is_empty());
        assert_eq!(faults.plan(Some(Step::Decode), "/v1/completions").before.len(), 1);
        assert_eq!(faults.plan(Some(Step::Decode), "/v1/completions").before.len(), 1);
        assert!(faults.plan(Some(Step::Decode), "/v1/completions").before.is_empty());
    }

    #[test]
    fn a_path_reaches_requests_that_generate_nothing() {
        let faults = Faults::default();
        faults.add(Fault::status(503).on_path("/health").always());
        for _ in 0..3 {
            assert_eq!(faults.plan(None, "/health").before.len(), 1);
        }
        assert!(faults.plan(Some(Step::Decode), "/v1/completions").before.is_empty());
    }

    #[test]
    fn faults_are_read_from_json() {
        for json in [
            json!({"status": {"code": 503}, "step": "decode", "times": 2}),
            json!({"cut_after": {"frames": 3}, "times": null}),
            json!({"kv_params": {"value": null}}),
            json!({"slow_read": {"ms": 5}}),
            json!({"hang": {}}),
        ] {
            Fault::from_json(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
        }
        assert!(Fault::from_json(&json!({"frobnicate": {}})).is_err());
    }
}
