//! What one source says, and how the words of several are laid over each other.

use std::collections::{BTreeMap, HashMap};

use edge_router_policy::Role;
use thiserror::Error;

use crate::fleet::{InstanceSpec, RENDER};

/// Label with the seconds that a prefill instance keeps a KV cache for decode. Sources that know the connector
/// give its default; who is heard before them knows better, so that of this label the first said wins.
pub(super) const KV_LEASE: &str = "kv_lease_s";

/// Why instances make no roster.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RosterError {
    /// The address is there already in that role.
    #[error("instance {0} is named twice")]
    Twice(String),
}

/// The instances that one source announces, each address once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster(Vec<InstanceSpec>);

impl Roster {
    /// A roster of these instances. An address that is named as prefill and as decode serves both, with the
    /// sizes and labels of both; one that is named as a renderer as well is labelled so.
    ///
    /// # Errors
    /// [`RosterError::Twice`] if an address is named twice in a role.
    pub fn new(instances: impl IntoIterator<Item = InstanceSpec>) -> Result<Self, RosterError> {
        let mut roster: Vec<InstanceSpec> = Vec::new();
        let mut places = HashMap::new();
        for spec in instances {
            let at = *places.entry(spec.address.clone()).or_insert(roster.len());
            match roster.get_mut(at) {
                None => roster.push(spec),
                Some(known) if serves_already(known.role, spec.role) => {
                    return Err(RosterError::Twice(spec.address));
                }
                Some(known) => merge(known, &spec, spec.role),
            }
        }
        Ok(Self(roster))
    }

    /// A roster of instances with an address of its own each.
    pub(super) fn of_distinct(instances: Vec<InstanceSpec>) -> Self {
        Self(instances)
    }

    /// With what the admin API has taken out of `before` still out, where the source only repeats itself.
    pub(super) fn into_entries(self, before: &[Entry]) -> Vec<Entry> {
        let before: HashMap<&str, &Entry> =
            before.iter().map(|entry| (entry.said.address.as_str(), entry)).collect();
        let entry = |said: InstanceSpec| match before.get(said.address.as_str()) {
            Some(entry) if entry.said == said => (*entry).clone(),
            _ => Entry::new(said),
        };
        self.0.into_iter().map(entry).collect()
    }
}

/// An instance as a source announces it, and what the admin API has left of that.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) said: InstanceSpec,
    /// The role that counts; `None` if it was removed.
    pub(super) in_force: Option<Role>,
}

impl Entry {
    pub(super) fn new(said: InstanceSpec) -> Self {
        Self { in_force: Some(said.role), said }
    }

    /// It serves in `role` as well.
    pub(super) fn add_role(&mut self, role: Role) {
        if role == Role::Render && self.said.role != role {
            self.said.set_renders(true);
        }
        self.said.role = plus(self.said.role, role);
        self.in_force = Some(self.in_force.map_or(role, |known| plus(known, role)));
    }

    /// It serves in `role` no more, or not at all if `None`.
    pub(super) fn remove_role(&mut self, role: Option<Role>) {
        if role == Some(Role::Render) {
            self.said.set_renders(false);
        }
        self.in_force = match (self.in_force, role) {
            (Some(Role::Both), Some(Role::Prefill)) => Some(Role::Decode),
            (Some(Role::Both), Some(Role::Decode)) => Some(Role::Prefill),
            (Some(known), Some(role)) if known != role && role != Role::Both => Some(known),
            _ => None,
        };
    }
}

/// Whether who serves as `known` need not be told to serve as `more`. Rendering goes with every role.
pub(super) fn serves_already(known: Role, more: Role) -> bool {
    plus(known, more) == known && (more != Role::Render || known == Role::Render)
}

/// Both roles together; the first if nobody can have both, and the other one if one of them is to render.
pub(super) fn plus(known: Role, more: Role) -> Role {
    match (known, more) {
        (Role::Prefill, Role::Decode | Role::Both) | (Role::Decode, Role::Prefill | Role::Both) => Role::Both,
        (Role::Render, _) => more,
        _ => known,
    }
}

/// The instances of all entries that count, each address once: with every role that is said of it, the
/// largest sizes (who knows none says 1), and all labels, of which the last said wins ([`KV_LEASE`]: the
/// first). What `more` says counts only of those that are there.
pub(super) fn lay_over<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    more: impl Iterator<Item = &'a Entry>,
) -> Vec<InstanceSpec> {
    let mut all: Vec<InstanceSpec> = Vec::new();
    let mut places = HashMap::new();
    for entry in entries {
        let Some(role) = entry.in_force else { continue };
        let at = *places.entry(entry.said.address.as_str()).or_insert(all.len());
        match all.get_mut(at) {
            None => all.push(InstanceSpec { role, ..entry.said.clone() }),
            Some(known) => merge(known, &entry.said, role),
        }
    }
    for entry in more {
        if let Some(known) = places.get(entry.said.address.as_str()).and_then(|at| all.get_mut(*at)) {
            let role = known.role;
            merge(known, &entry.said, role);
        }
    }
    all
}

fn merge(known: &mut InstanceSpec, more: &InstanceSpec, role: Role) {
    let renders_too = known.role != role && [known.role, role].contains(&Role::Render);
    known.role = plus(known.role, role);
    known.dp_size = known.dp_size.max(more.dp_size);
    known.tp_size = known.tp_size.max(more.tp_size);
    // Sorted, so that the same words never look like others.
    let mut labels: BTreeMap<_, _> = known.labels.drain(..).collect();
    for (name, value) in more.labels.iter().cloned() {
        if name != KV_LEASE || !labels.contains_key(&name) {
            labels.insert(name, value);
        }
    }
    if renders_too {
        labels.insert(RENDER.into(), "true".into());
    }
    known.labels = labels.into_iter().collect();
}
