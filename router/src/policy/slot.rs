//! One place in the chain: the version of a policy that is running, what it replaced, and what it did
//! wrong.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use edge_router_policy::{Handoff, Instance, Manifest};
use tokio::time::Instant;

use super::Hook;
use super::component::{LoadError, Program};
use super::engine::PolicyEngine;
use super::guest_log::GuestLog;
use super::instance::{Fault, Running};
use crate::fleet::Snapshot;
use crate::metrics::PolicyMetrics;

/// Faults in a row after which a policy is left alone for a while: the first few may be bad luck.
const PATIENCE: u32 = 3;
/// The first pause; each further fault doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Faults in a row after which the version before is brought back.
const ROLL_BACK_AFTER: u32 = 8;
/// A fault of one kind is logged this often.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// What a policy may carry over a reload.
const MAX_SNAPSHOT: usize = 1024 * 1024;

/// One loaded version of a policy.
pub(super) struct Version {
    program: Arc<Program>,
    config: String,
    pub(super) manifest: Manifest,
    /// Counts the loads of the slot.
    pub(super) serial: u32,
    running: Mutex<Run>,
    faults_in_a_row: AtomicU32,
}

struct Run {
    running: Option<Running>,
    rest_until: Option<Instant>,
}

/// A policy in the chain.
pub struct Slot {
    /// Name of the file without its ending.
    pub(super) name: Arc<str>,
    /// The file.
    pub(super) path: PathBuf,
    engine: PolicyEngine,
    log: GuestLog,
    metrics: Arc<PolicyMetrics>,
    active: ArcSwap<Version>,
    history: Mutex<History>,
    last_logged: Mutex<Option<(Instant, &'static str)>>,
    unlogged: AtomicU64,
}

#[derive(Default)]
struct History {
    previous: Option<Arc<Version>>,
    reloads: u32,
    last_error: Option<String>,
}

/// What `/status` says of a slot.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SlotStatus {
    /// From the manifest.
    pub name: String,
    /// From the manifest.
    pub version: String,
    /// The file.
    pub file: String,
    /// How many times the file was loaded, the first included.
    pub loads: u32,
    /// Why the file as it is now could not be loaded, or was replaced by the version before it.
    pub last_error: Option<String>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("name", &self.name).field("path", &self.path).finish_non_exhaustive()
    }
}

impl Slot {
    /// Starts the first version.
    pub(super) fn new(
        engine: PolicyEngine,
        path: PathBuf,
        program: Arc<Program>,
        config: String,
        metrics: Arc<PolicyMetrics>,
    ) -> Result<Self, LoadError> {
        let name: Arc<str> =
            path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned()).into();
        let log = GuestLog::new(&name);
        let version = Version::start(&engine, &name, program, config, &log, 1)?;
        Ok(Self {
            name,
            path,
            engine,
            log,
            metrics,
            active: ArcSwap::from_pointee(version),
            history: Mutex::default(),
            last_logged: Mutex::default(),
            unlogged: AtomicU64::new(0),
        })
    }

    /// The manifest of the running version.
    pub fn manifest(&self) -> Manifest {
        self.active.load().manifest.clone()
    }

    pub(super) fn facts(&self) -> edge_router_policy::Facts {
        self.active.load().manifest.facts
    }

    pub(super) fn handoff(&self) -> Option<Handoff> {
        self.active.load().manifest.handoff
    }

    /// For `/status`.
    pub fn status(&self) -> SlotStatus {
        let active = self.active.load();
        let history = self.history();
        SlotStatus {
            name: active.manifest.name.clone(),
            version: active.manifest.version.clone(),
            file: self.path.display().to_string(),
            loads: 1 + history.reloads,
            last_error: history.last_error.clone(),
        }
    }

    /// Replaces the running version. Calls that have begun end on the old one.
    pub(super) fn replace(&self, program: Arc<Program>, config: String) -> Result<(), LoadError> {
        let old = self.active.load_full();
        let mut version =
            Version::start(&self.engine, &self.name, program, config, &self.log, old.serial + 1)?;
        self.carry_over(&old, &mut version);
        let version = Arc::new(version);
        let (number, serial) = (version.manifest.version.clone(), version.serial);
        self.active.store(version);
        let mut history = self.history();
        history.reloads += 1;
        history.last_error = None;
        history.previous = Some(old);
        drop(history);
        self.metrics.reloaded(&self.name, "ok");
        tracing::info!(policy = &*self.name, version = number, serial, "policy reloaded");
        Ok(())
    }

    /// The file as it is now can't be used; what runs goes on.
    pub(super) fn refuse(&self, error: &LoadError) {
        tracing::error!(policy = &*self.name, file = %self.path.display(), error = %crate::error::chain(error),
            "policy file can't be loaded; the running version stays");
        self.history().last_error = Some(crate::error::chain(error));
        self.metrics.reloaded(&self.name, "error");
    }

    /// Calls a hook. `None` if the policy abstains; a fault is counted, logged and answered with `None`.
    pub(super) fn call<T>(
        &self,
        hook: Hook,
        fleet: &Snapshot,
        call: impl FnOnce(&mut Running) -> Result<Option<T>, Fault>,
    ) -> Option<T> {
        let version = self.active.load();
        match version.call(&self.engine, &self.log, fleet, call) {
            Ok(decision) => decision,
            Err(fault) => {
                self.failed(&version, hook, &fault);
                None
            }
        }
    }

    fn carry_over(&self, old: &Version, new: &mut Version) {
        let mut run = old.lock();
        let snapshot = match run.running.as_mut().map(Running::snapshot) {
            Some(Ok(snapshot)) if snapshot.is_empty() => return,
            Some(Ok(snapshot)) if snapshot.len() <= MAX_SNAPSHOT => snapshot,
            Some(Ok(snapshot)) => {
                tracing::warn!(
                    policy = &*self.name,
                    bytes = snapshot.len(),
                    "snapshot is too large; the new version starts empty"
                );
                return;
            }
            Some(Err(fault)) => {
                tracing::warn!(policy = &*self.name, %fault, "no snapshot; the new version starts empty");
                run.running = None;
                return;
            }
            None => return,
        };
        drop(run);
        if let Err(fault) = new.restore(&snapshot) {
            tracing::warn!(policy = &*self.name, %fault, "snapshot was refused; the new version starts empty");
        }
    }

    fn failed(&self, version: &Arc<Version>, hook: Hook, fault: &Fault) {
        self.metrics.fault(&self.name, hook, fault);
        if matches!(fault, Fault::Resting) {
            return;
        }
        self.log_fault(hook, fault);
        let faults = version.faults_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if faults >= ROLL_BACK_AFTER {
            self.roll_back(version, fault);
        }
    }

    /// One line per kind and period; the metric counts them all.
    fn log_fault(&self, hook: Hook, fault: &Fault) {
        let mut last = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|(at, kind)| kind == fault.kind() && at.elapsed() < LOG_EVERY) {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        *last = Some((Instant::now(), fault.kind()));
        let like_it = self.unlogged.swap(0, Ordering::Relaxed);
        tracing::warn!(policy = &*self.name, hook = hook.name(), %fault, like_it, "policy failed; the next one in the chain decides");
    }

    fn roll_back(&self, version: &Arc<Version>, fault: &Fault) {
        let mut history = self.history();
        let Some(previous) = history.previous.take() else { return };
        if !Arc::ptr_eq(&self.active.load(), version) {
            history.previous = Some(previous);
            return;
        }
        let text =
            format!("version {} failed {ROLL_BACK_AFTER} times in a row ({fault})", version.manifest.version);
        tracing::error!(policy = &*self.name, "{text}; the version before it is back");
        history.last_error = Some(text);
        drop(history);
        self.active.store(previous);
        self.metrics.reloaded(&self.name, "rolled_back");
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Version {
    fn start(
        engine: &PolicyEngine,
        name: &str,
        program: Arc<Program>,
        config: String,
        log: &GuestLog,
        serial: u32,
    ) -> Result<Self, LoadError> {
        let (scratch, manifest) = Running::start(engine, &program, &config, log)?;
        let manifest = checked(manifest.unwrap_or_else(|| Manifest::new(name, "")))?;
        // The probe's made-up instances must leave no trace in what will serve.
        super::probe::probe(scratch)?;
        let (running, _) = Running::start(engine, &program, &config, log)?;
        let running = Mutex::new(Run { running: Some(running), rest_until: None });
        Ok(Self { program, config, manifest, serial, running, faults_in_a_row: AtomicU32::new(0) })
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), Fault> {
        let run = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        let restored = run.running.as_mut().map_or(Ok(()), |running| running.restore(snapshot));
        if restored.as_ref().is_err_and(Fault::is_fatal) {
            run.running = None;
        }
        restored
    }

    fn call<T>(
        &self,
        engine: &PolicyEngine,
        log: &GuestLog,
        fleet: &Snapshot,
        call: impl FnOnce(&mut Running) -> Result<Option<T>, Fault>,
    ) -> Result<Option<T>, Fault> {
        let mut run = self.lock();
        if run.running.is_none() {
            self.restart(engine, log, &mut run)?;
        }
        let Some(running) = run.running.as_mut() else { return Err(Fault::Resting) };
        let told = if running.fleet == Some(fleet.generation) {
            Ok(())
        } else {
            running.instances_changed(fleet.generation, &described(fleet))
        };
        let result = told.and_then(|()| call(running));
        match &result {
            Err(fault) if fault.is_fatal() => {
                // The store of a trapped instance refuses every further call.
                run.running = None;
                run.rest_until =
                    pause(self.faults_in_a_row.load(Ordering::Relaxed)).map(|p| Instant::now() + p);
            }
            Err(_) => {}
            Ok(_) => self.faults_in_a_row.store(0, Ordering::Relaxed),
        }
        result
    }

    fn restart(&self, engine: &PolicyEngine, log: &GuestLog, run: &mut Run) -> Result<(), Fault> {
        if run.rest_until.is_some_and(|until| Instant::now() < until) {
            return Err(Fault::Resting);
        }
        match Running::start(engine, &self.program, &self.config, log) {
            Ok((running, _)) => {
                run.running = Some(running);
                Ok(())
            }
            Err(error) => {
                let faults = self.faults_in_a_row.load(Ordering::Relaxed);
                run.rest_until = Some(Instant::now() + pause(faults + PATIENCE).unwrap_or(FIRST_PAUSE));
                Err(Fault::Trap(crate::error::chain(&error)))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Run> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long to leave a policy alone after `faults` faults in a row.
fn pause(faults: u32) -> Option<Duration> {
    let doublings = (faults + 1).checked_sub(PATIENCE)?;
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
    if manifest.handoff == Some(Handoff::Concurrent) {
        let text = "it asks for the concurrent handoff, which this router does not offer; with serial-paired both instances are chosen first, too";
        return Err(LoadError::Manifest(text.into()));
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
        assert_eq!(pauses[..6], [None, None, Some(10), Some(20), Some(40), Some(80)]);
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
