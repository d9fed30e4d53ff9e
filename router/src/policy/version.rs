//! One loaded version of a policy: its running instance, and what happens after it has failed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use edge_router_policy::{Instance, Manifest};
use tokio::time::Instant;

use super::component::{LoadError, Program};
use super::engine::PolicyEngine;
use super::guest_log::GuestLog;
use super::instance::{Fault, Running, SETUP_FACTOR};
use crate::fleet::Snapshot;

/// A fault weighs as much as this many calls that went well. Faults in a row would be too narrow a
/// measure: one request makes several calls, and a policy may fail in one hook or phase only.
const FAULT_WEIGHT: u32 = 16;
/// Faults after which a policy is left alone for a while: the first few may be bad luck.
const PATIENCE: u32 = 3;
/// The first pause; each further fault doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Faults after which the version before is brought back.
const ROLL_BACK_AFTER: u32 = 8;

/// One loaded version of a policy.
pub(super) struct Version {
    program: Arc<Program>,
    config: String,
    pub(super) manifest: Manifest,
    /// Counts the loads of the slot.
    pub(super) serial: u32,
    run: Mutex<Run>,
}

#[derive(Default)]
struct Run {
    running: Option<Running>,
    rest_until: Option<Instant>,
    /// Faults, [`FAULT_WEIGHT`] each, less the calls that went well.
    score: u32,
    /// The instance did not start within the deadline of a call; it is started off the request path.
    starts_slowly: bool,
    /// It is being started off the request path.
    starting: bool,
    /// Why it did not start there; for the next call to report.
    failed_start: Option<Fault>,
}

impl Version {
    /// Starts and tries a version. Takes its time: not for a runtime worker.
    pub(super) fn start(
        engine: &PolicyEngine,
        name: &str,
        program: Arc<Program>,
        config: String,
        log: &GuestLog,
        serial: u32,
    ) -> Result<Self, LoadError> {
        let (scratch, manifest) = Running::start(engine, &program, &config, log, SETUP_FACTOR)?;
        let manifest = match manifest {
            Some(manifest) => checked(manifest)?,
            None => Manifest::new(name, ""),
        };
        // The probe's made-up instances must leave no trace in what will serve.
        super::probe::probe(scratch)?;
        let (running, _) = Running::start(engine, &program, &config, log, SETUP_FACTOR)?;
        let run = Mutex::new(Run { running: Some(running), ..Run::default() });
        Ok(Self { program, config, manifest, serial, run })
    }

    /// Its memory, for the version that replaces it; empty if it has none.
    pub(super) fn snapshot(&self) -> Result<Vec<u8>, Fault> {
        let mut run = self.lock();
        let snapshot = run.running.as_mut().map_or(Ok(Vec::new()), Running::snapshot);
        if snapshot.as_ref().is_err_and(Fault::is_fatal) {
            run.running = None;
        }
        snapshot
    }

    /// Gives it the memory of the version that it replaces. Before it serves.
    pub(super) fn restore(&mut self, snapshot: &[u8]) -> Result<(), Fault> {
        let run = self.run.get_mut().unwrap_or_else(PoisonError::into_inner);
        let restored = run.running.as_mut().map_or(Ok(()), |running| running.restore(snapshot));
        if restored.as_ref().is_err_and(Fault::is_fatal) {
            run.running = None;
        }
        restored
    }

    /// Whether it has failed so often that the version before should be brought back.
    pub(super) fn is_failing(&self) -> bool {
        self.lock().score >= ROLL_BACK_AFTER * FAULT_WEIGHT
    }

    /// Calls a hook, after telling it the fleet if that has changed.
    pub(super) fn call<T>(
        self: &Arc<Self>,
        engine: &PolicyEngine,
        log: &GuestLog,
        fleet: &Snapshot,
        call: impl FnOnce(&mut Running) -> Result<Option<T>, Fault>,
    ) -> Result<Option<T>, Fault> {
        let mut run = self.lock();
        let result = self.running(engine, log, &mut run).and_then(|running| {
            // A request may still hold an older snapshot; the policy is not taken back to it.
            if running.fleet.is_none_or(|told| told < fleet.generation) {
                running.instances_changed(fleet.generation, &described(fleet))?;
            }
            call(running)
        });
        match &result {
            Ok(_) => run.score = run.score.saturating_sub(1),
            Err(Fault::Resting) => {}
            Err(fault) => run.failed(fault),
        }
        result
    }

    /// The instance; a new one if the last has failed and the pause after that is over.
    fn running<'r>(
        self: &Arc<Self>,
        engine: &PolicyEngine,
        log: &GuestLog,
        run: &'r mut Run,
    ) -> Result<&'r mut Running, Fault> {
        if let Some(fault) = run.failed_start.take() {
            return Err(fault);
        }
        if run.running.is_none() {
            if run.starting || run.rest_until.is_some_and(|until| Instant::now() < until) {
                return Err(Fault::Resting);
            }
            if run.starts_slowly {
                run.starting = true;
                self.start_aside(engine.clone(), log.clone());
                return Err(Fault::Resting);
            }
            let started = Running::start(engine, &self.program, &self.config, log, 1);
            run.starts_slowly = started.as_ref().is_err_and(LoadError::is_deadline);
            run.running = Some(started.map_err(|error| not_started(&error))?.0);
        }
        run.running.as_mut().ok_or(Fault::Resting)
    }

    /// Starts a new instance where it holds no request up: `configure` may take many deadlines.
    fn start_aside(self: &Arc<Self>, engine: PolicyEngine, log: GuestLog) {
        let version = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let started = Running::start(&engine, &version.program, &version.config, &log, SETUP_FACTOR);
            let mut run = version.lock();
            run.starting = false;
            match started {
                Ok((running, _)) => run.running = Some(running),
                Err(error) => run.failed_start = Some(not_started(&error)),
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn failed(&mut self, fault: &Fault) {
        self.score = self.score.saturating_add(FAULT_WEIGHT);
        if fault.is_fatal() {
            // The store of a trapped instance refuses every further call.
            self.running = None;
            self.rest_until = pause(self.score / FAULT_WEIGHT).map(|pause| Instant::now() + pause);
        }
    }
}

fn not_started(error: &LoadError) -> Fault {
    Fault::Trap(crate::error::chain(error))
}

/// How long to leave a policy alone after so many faults.
fn pause(faults: u32) -> Option<Duration> {
    let doublings = faults.checked_sub(PATIENCE)?;
    Some(FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE))
}

fn described(fleet: &Snapshot) -> Vec<Instance> {
    fleet.instances.iter().map(|i| i.described()).collect()
}

fn checked(manifest: Manifest) -> Result<Manifest, LoadError> {
    let name_ok = (1..=64).contains(&manifest.name.len())
        && manifest
            .name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    if !name_ok {
        return Err(LoadError::Manifest(format!("name {:?} is not 1 to 64 of [a-z0-9_-]", manifest.name)));
    }
    if manifest.version.len() > 64 {
        return Err(LoadError::Manifest("version is longer than 64 bytes".into()));
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_late_double_and_end() {
        let pauses: Vec<_> = (0..14).map(|faults| pause(faults).map(|p| p.as_millis())).collect();
        assert_eq!(pauses[..7], [None, None, None, Some(10), Some(20), Some(40), Some(80)]);
        assert_eq!(pauses[13], Some(5000));
    }

    #[test]
    fn manifests_are_checked() {
        assert!(checked(Manifest::new("cache_aware-2", "1.0")).is_ok());
        assert!(checked(Manifest::new("", "")).is_err());
        assert!(checked(Manifest::new("Cache Aware", "")).is_err());
        assert!(checked(Manifest::new("a", "x".repeat(65))).is_err());
    }
}
