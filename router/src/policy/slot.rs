//! One place in the chain: the version of a policy that is running, what it replaced, and what it did
//! wrong.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use edge_router_policy::{Handoff, Manifest};
use tokio::time::Instant;

use super::Hook;
use super::component::{LoadError, Program};
use super::engine::PolicyEngine;
use super::guest_log::GuestLog;
use super::instance::{Fault, Running};
use super::version::Version;
use crate::fleet::Snapshot;
use crate::metrics::PolicyMetrics;

/// A fault of one kind is logged this often.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// What a policy may carry over a reload.
const MAX_SNAPSHOT: usize = 1024 * 1024;

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
    /// When a fault of each kind was logged last.
    logged: Mutex<HashMap<&'static str, Instant>>,
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
            logged: Mutex::default(),
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
        let (number, serial) = (version.manifest.version.clone(), version.serial);
        // Held over the exchange: a request may be about to bring the version before back.
        let mut history = self.history();
        history.previous = Some(self.active.swap(Arc::new(version)));
        history.reloads += 1;
        history.last_error = None;
        drop(history);
        self.metrics.reloaded(&self.name, "ok");
        tracing::info!(policy = &*self.name, version = number, serial, "policy reloaded");
        Ok(())
    }

    /// The file as it is now can't be used; what runs goes on.
    pub(super) fn refuse(&self, error: &LoadError) {
        let error = crate::error::chain(error);
        self.history().last_error = Some(error.clone());
        self.metrics.reloaded(&self.name, "error");
        tracing::error!(policy = &*self.name, file = %self.path.display(), error,
            "policy file can't be loaded; the running version stays");
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
        let snapshot = match old.snapshot() {
            Ok(snapshot) if snapshot.is_empty() => return,
            Ok(snapshot) if snapshot.len() <= MAX_SNAPSHOT => snapshot,
            Ok(snapshot) => {
                tracing::warn!(
                    policy = &*self.name,
                    bytes = snapshot.len(),
                    "snapshot is too large; the new version starts empty"
                );
                return;
            }
            Err(fault) => {
                tracing::warn!(policy = &*self.name, %fault, "no snapshot; the new version starts empty");
                return;
            }
        };
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
        if version.is_failing() {
            self.roll_back(version, fault);
        }
    }

    /// One line per kind and period; the metric counts them all.
    fn log_fault(&self, hook: Hook, fault: &Fault) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(fault.kind()).is_some_and(|at| at.elapsed() < LOG_EVERY) {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        logged.insert(fault.kind(), Instant::now());
        drop(logged);
        let unlogged = self.unlogged.swap(0, Ordering::Relaxed);
        tracing::warn!(policy = &*self.name, hook = hook.name(), %fault, unlogged, "policy failed; the next one in the chain decides");
    }

    fn roll_back(&self, version: &Arc<Version>, fault: &Fault) {
        let mut history = self.history();
        let Some(previous) = history.previous.take() else { return };
        if !Arc::ptr_eq(&self.active.load(), version) {
            history.previous = Some(previous);
            return;
        }
        self.active.store(previous);
        let text = format!("version {} failed again and again ({fault})", version.manifest.version);
        tracing::error!(policy = &*self.name, "{text}; the version before it is back");
        history.last_error = Some(text);
        drop(history);
        self.metrics.reloaded(&self.name, "rolled_back");
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
