//! Which instances there should be, from all who have a say in it.
//!
//! Each source (configuration, admin API, file, …) announces its whole roster whenever that changes. The
//! rosters are laid over each other by address and make up the fleet, so that an instance stays until the
//! last source has dropped it. A source that fails says so and keeps its last roster.
//!
//! What the admin API removes is out, whoever announces it; until it is added again, or a source has
//! dropped it and announces it anew, or announces it as another (role, sizes, labels).

mod bootstrap;
mod dns;
mod file;
mod registration;
mod roster;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use edge_router_policy::Role;
use thiserror::Error;
use tokio::net::TcpListener;

pub use roster::{Roster, RosterError};

use crate::config::DiscoverySettings;
use crate::fleet::{Fleet, InstanceSpec, role_name};
use crate::metrics::DiscoveryMetrics;
use roster::{Entry, lay_over};

/// Why the admin API could not change the fleet.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MembershipError {
    /// The address serves in that role already.
    #[error("instance {0} is already known")]
    Duplicate(String),
    /// No such instance.
    #[error("no instance {0}")]
    Unknown(String),
}

/// What one source says.
#[derive(Debug)]
struct Voice {
    name: String,
    /// It only tells more of instances that others announce.
    describes: bool,
    entries: Vec<Entry>,
    /// Why the source has nothing newer to say, if it has failed since.
    problem: Option<String>,
}

impl Voice {
    fn new(name: String, describes: bool) -> Self {
        Self { name, describes, entries: Vec::new(), problem: None }
    }
}

/// A source as `/status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SourceStatus {
    /// Its name.
    pub name: String,
    /// Instances in its last roster.
    pub instances: usize,
    /// Why it has nothing newer to say, if it has failed since.
    pub problem: Option<String>,
}

/// The rosters of all sources, and the fleet that they make up.
#[derive(Debug)]
pub struct Discovery {
    fleet: Arc<Fleet>,
    /// In the order in which the sources were made; the admin API is the first.
    voices: Mutex<Vec<Voice>>,
    doubt: Arc<bootstrap::Doubt>,
}

/// The admin API's place among the voices.
const ADMIN: usize = 0;

/// The right of one source to announce instances.
#[derive(Debug)]
pub struct Source {
    discovery: Arc<Discovery>,
    at: usize,
}

impl Discovery {
    /// For a fleet in which nobody else has a say.
    pub fn new(fleet: Arc<Fleet>) -> Arc<Self> {
        let admin = Voice::new("admin".into(), false);
        Arc::new(Self { fleet, voices: Mutex::new(vec![admin]), doubt: Arc::default() })
    }

    /// A new source, called `name` in logs and `/status`. Its labels win over those of the sources before.
    pub fn source(self: &Arc<Self>, name: impl Into<String>) -> Source {
        let mut voices = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        voices.push(Voice::new(name.into(), false));
        Source { discovery: Arc::clone(self), at: voices.len() - 1 }
    }

    /// A source that knows more of the instances that others announce, and announces none itself.
    fn describing_source(self: &Arc<Self>, name: &str) -> Source {
        let mut voices = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        voices.push(Voice::new(name.to_owned(), true));
        Source { discovery: Arc::clone(self), at: voices.len() - 1 }
    }

    /// Starts the sources that are set, each in a task of its own.
    ///
    /// # Errors
    /// When the registration port can't be bound.
    pub async fn start(
        self: &Arc<Self>,
        settings: &DiscoverySettings,
        metrics: &Arc<DiscoveryMetrics>,
    ) -> io::Result<()> {
        if let Some(path) = settings.instances_file.clone() {
            tokio::spawn(file::watch(path, self.source("file")));
        }
        for (role, names) in [(Role::Prefill, &settings.prefill_dns), (Role::Decode, &settings.decode_dns)] {
            for name in names {
                let source = self.source(format!("{} dns {name}", role_name(role)));
                tokio::spawn(dns::watch(name.clone(), role, settings.dns_interval, dns::system, source));
            }
        }
        let (fleet, servers) = (Arc::clone(&self.fleet), settings.mooncake_bootstrap.clone());
        let (doubt, source) = (Arc::clone(&self.doubt), self.describing_source("mooncake bootstrap"));
        tokio::spawn(bootstrap::watch(fleet, servers, doubt, source));
        if let Some(registration) = settings.registration {
            let listener = TcpListener::bind(registration.listen).await?;
            tracing::info!("engines may register on {}", listener.local_addr()?);
            let (metrics, source) = (Arc::clone(metrics), self.source("registration"));
            tokio::spawn(registration::listen(listener, registration.ttl, metrics, source));
        }
        Ok(())
    }

    /// A decode instance could not fetch a KV cache, maybe because prefill has restarted and has other engine
    /// ids by now: asks for them soon, at most once a second. Cheap; of no effect where none are asked for.
    pub fn doubt_engine_ids(&self) {
        self.doubt.raise();
    }

    /// Adds an instance in the name of the admin API. Must be called within the runtime.
    ///
    /// # Errors
    /// [`MembershipError::Duplicate`] if the address serves in that role already; an address that serves
    /// as prefill and is added as decode serves both.
    pub fn add(&self, spec: InstanceSpec) -> Result<(), MembershipError> {
        let mut voices = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        let known = role_in_force(&voices, &spec.address);
        if known.is_some_and(|known| roster::serves_already(known, spec.role)) {
            return Err(MembershipError::Duplicate(spec.address));
        }
        let entries = &mut voices[ADMIN].entries;
        match entries.iter_mut().find(|entry| entry.said.address == spec.address) {
            Some(entry) => entry.add_role(spec.role),
            None => entries.push(Entry::new(spec)),
        }
        self.take_effect(&voices);
        Ok(())
    }

    /// Describes an instance in the name of the admin API: in place of what that has said of it before, if it
    /// has. Whether it is new. Must be called within the runtime.
    pub fn register(&self, spec: InstanceSpec) -> bool {
        let mut voices = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = role_in_force(&voices, &spec.address).is_none();
        let entries = &mut voices[ADMIN].entries;
        entries.retain(|entry| entry.said.address != spec.address);
        entries.push(Entry::new(spec));
        self.take_effect(&voices);
        is_new
    }

    /// Removes an instance in the name of the admin API, or one of its two roles if `role` names one. Must be
    /// called within the runtime.
    ///
    /// # Errors
    /// [`MembershipError::Unknown`] if no instance with that address serves in `role` (any role if `None`).
    pub fn remove(&self, address: &str, role: Option<Role>) -> Result<(), MembershipError> {
        let mut voices = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        let known = role_in_force(&voices, address);
        if !known.is_some_and(|known| role.is_none_or(|role| roster::plus(known, role) == known)) {
            return Err(MembershipError::Unknown(address.to_owned()));
        }
        let announcing = voices.iter_mut().filter(|voice| !voice.describes);
        for entry in announcing.flat_map(|voice| &mut voice.entries) {
            if entry.said.address == address {
                entry.remove_role(role);
            }
        }
        voices[ADMIN].entries.retain(|entry| entry.in_force.is_some());
        self.take_effect(&voices);
        Ok(())
    }

    /// The names of those who announce an instance, by its address.
    pub fn announcers(&self) -> HashMap<String, Vec<String>> {
        let voices = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = HashMap::<_, Vec<_>>::new();
        for voice in voices.iter().filter(|voice| !voice.describes) {
            for entry in voice.entries.iter().filter(|entry| entry.in_force.is_some()) {
                names.entry(entry.said.address.clone()).or_default().push(voice.name.clone());
            }
        }
        names
    }

    /// All sources.
    pub fn status(&self) -> Vec<SourceStatus> {
        let voices = self.voices.lock().unwrap_or_else(PoisonError::into_inner);
        let status = |voice: &Voice| SourceStatus {
            name: voice.name.clone(),
            instances: voice.entries.len(),
            problem: voice.problem.clone(),
        };
        voices.iter().map(status).collect()
    }

    /// The caller holds the lock, so that rosters take effect in the order in which they came.
    fn take_effect(&self, voices: &[Voice]) {
        let entries = |describes| {
            voices.iter().filter(move |voice| voice.describes == describes).flat_map(|voice| &voice.entries)
        };
        self.fleet.apply(lay_over(entries(false), entries(true)));
    }
}

impl Source {
    /// Replaces what this source has announced before. Must be called within the runtime.
    pub fn announce(&self, roster: Roster) {
        let mut voices = self.discovery.voices.lock().unwrap_or_else(PoisonError::into_inner);
        let voice = &mut voices[self.at];
        if voice.problem.take().is_some() {
            tracing::info!(source = voice.name, "discovery works again");
        }
        voice.entries = roster.into_entries(&voice.entries);
        self.discovery.take_effect(&voices);
    }

    /// There is nothing newer to say, for this reason; what was announced last stays.
    pub fn failed(&self, why: impl Into<String>) {
        let mut voices = self.discovery.voices.lock().unwrap_or_else(PoisonError::into_inner);
        let (voice, why) = (&mut voices[self.at], why.into());
        if voice.problem.as_ref() != Some(&why) {
            let kept = voice.entries.len();
            tracing::warn!(source = voice.name, why, kept, "discovery failed; the last good roster stays");
            voice.problem = Some(why);
        }
    }
}

fn role_in_force(voices: &[Voice], address: &str) -> Option<Role> {
    let announcing = voices.iter().filter(|voice| !voice.describes).flat_map(|voice| &voice.entries);
    let named = announcing.filter(|entry| entry.said.address == address);
    named.filter_map(|entry| entry.in_force).reduce(roster::plus)
}

#[cfg(test)]
mod tests;
