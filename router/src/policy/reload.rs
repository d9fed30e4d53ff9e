//! Loads policies from files, and loads them again when the files change.
//!
//! What counts is whether the bytes have changed, and that they have stopped changing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::sleep;
use xxhash_rust::xxh3::xxh3_128;

use super::component::{self, LoadError, MAX_FILE};
use super::engine::PolicyEngine;
use super::slot::Slot;
use crate::metrics::PolicyMetrics;
use crate::watch::{self, Changes};

/// A file is read when it has looked the same for this long.
const SETTLE: Duration = Duration::from_millis(60);

/// Looks at one file before it is another's turn.
const MAX_LOOKS: u32 = 8;

/// Where a policy and its configuration come from.
#[derive(Debug, Clone)]
pub struct PolicySource {
    /// The component.
    pub path: PathBuf,
    /// Configuration given to the router itself. `None`: it is read from the JSON file beside the
    /// component, if there is one.
    pub config: Option<String>,
}

impl PolicySource {
    /// The JSON file beside the component.
    fn config_path(&self) -> PathBuf {
        self.path.with_extension("json")
    }

    /// Reads both files.
    fn read(&self) -> Result<(Vec<u8>, String), LoadError> {
        let length = std::fs::metadata(&self.path)?.len();
        if length > MAX_FILE {
            return Err(LoadError::TooLarge(length));
        }
        let bytes = std::fs::read(&self.path)?;
        let config = match &self.config {
            Some(config) => config.clone(),
            None => read_config(&self.config_path())?,
        };
        Ok((bytes, config))
    }

    /// Loads the policy for the first time. Compiles: not for a runtime worker.
    ///
    /// # Errors
    /// [`LoadError`]; the caller names the file.
    pub fn load(&self, engine: &PolicyEngine, metrics: Arc<PolicyMetrics>) -> Result<Watched, LoadError> {
        let looks = Looks::of(self);
        let (bytes, config) = self.read()?;
        let content = fingerprint(&bytes, &config);
        let program = component::compile(engine, &bytes)?;
        let slot = Slot::new(engine.clone(), self.path.clone(), program, config, metrics)?;
        Ok(Watched { slot: Arc::new(slot), source: self.clone(), looks, content })
    }
}

fn read_config(path: &Path) -> Result<String, LoadError> {
    match std::fs::read_to_string(path) {
        Ok(text) => match serde_json::from_str::<&RawValue>(&text) {
            Ok(_) => Ok(text),
            Err(error) => Err(LoadError::Configuration(format!("{} is not JSON: {error}", path.display()))),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok("{}".into()),
        Err(error) => Err(error.into()),
    }
}

fn fingerprint(bytes: &[u8], config: &str) -> u128 {
    xxh3_128(bytes) ^ xxh3_128(config.as_bytes()).rotate_left(1)
}

/// How the two files look.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Looks {
    component: Option<watch::Looks>,
    config: Option<watch::Looks>,
}

impl Looks {
    fn of(source: &PolicySource) -> Self {
        let config = source.config.is_none().then(|| watch::Looks::of(&source.config_path())).flatten();
        Self { component: watch::Looks::of(&source.path), config }
    }
}

/// A loaded policy and the files that it came from.
#[derive(Debug)]
pub struct Watched {
    /// Its place in the chain.
    pub slot: Arc<Slot>,
    source: PolicySource,
    looks: Looks,
    content: u128,
}

impl Watched {
    /// Looks whether the files have changed, waits until they stand still, and loads them. Nothing
    /// happens while the component is away: a policy whose file was deleted goes on.
    async fn check(&mut self, engine: &PolicyEngine) {
        let mut looks = Looks::of(&self.source);
        // A file that never stands still must not keep the others from being looked at.
        for _ in 0..MAX_LOOKS {
            if looks == self.looks || looks.component.is_none() {
                return;
            }
            sleep(SETTLE).await;
            let now = Looks::of(&self.source);
            if std::mem::replace(&mut looks, now.clone()) != now {
                continue;
            }
            let source = self.source.clone();
            let read = tokio::task::spawn_blocking(move || source.read()).await;
            if Looks::of(&self.source) != looks {
                continue;
            }
            self.looks = looks.clone();
            match read {
                Ok(Ok((bytes, config))) => self.reload(engine, bytes, config).await,
                Ok(Err(error)) => self.slot.refuse(&error),
                Err(panic) => tracing::error!(%panic, "reading a policy failed"),
            }
        }
    }

    async fn reload(&mut self, engine: &PolicyEngine, bytes: Vec<u8>, config: String) {
        let content = fingerprint(&bytes, &config);
        if content == self.content {
            return;
        }
        self.content = content;
        let (engine, slot) = (engine.clone(), Arc::clone(&self.slot));
        let load = move || {
            let loaded =
                component::compile(&engine, &bytes).and_then(|program| slot.replace(program, config));
            if let Err(error) = loaded {
                slot.refuse(&error);
            }
        };
        if let Err(panic) = tokio::task::spawn_blocking(load).await {
            tracing::error!(policy = &*self.slot.name, %panic, "loading a policy failed");
        }
    }
}

/// Watches the files of `policies` until the task is dropped.
pub async fn watch(mut policies: Vec<Watched>, engine: PolicyEngine) {
    let mut changes = Changes::of(policies.iter().map(|policy| policy.source.path.as_path()));
    loop {
        changes.next().await;
        for policy in &mut policies {
            policy.check(&engine).await;
        }
    }
}
