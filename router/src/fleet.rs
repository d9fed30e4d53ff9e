//! The engines that the router knows: who they are, how they are, and what they are busy with.
//!
//! A request loads one snapshot and keeps it. Membership changes publish a new snapshot; figures that
//! change with every request are atomics inside the instances.

mod ask;
mod candidates;
mod health;
mod instance;
mod load;
mod prefix_index;
mod probe;
mod scrape;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use edge_router_policy::{InstanceId, Phase, Role};
use http::HeaderValue;
use thiserror::Error;
use tokio::sync::watch;

pub use candidates::{Choice, Prefix};
pub use health::{HealthSettings, HealthState};
pub use instance::{Instance, InstanceSpec, parse_address};
pub use load::InFlight;
pub use prefix_index::PrefixIndex;

use crate::upstream::PoolSettings;

/// Why the fleet could not be changed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FleetError {
    /// The address is already there in that role.
    #[error("instance {0} is already known")]
    Duplicate(String),
    /// No such instance.
    #[error("no instance {0}")]
    Unknown(String),
}

/// How instances are treated.
#[derive(Debug, Clone, Default)]
pub struct FleetSettings {
    /// Connection pools.
    pub pool: PoolSettings,
    /// Probing and health.
    pub health: HealthSettings,
    /// Requests that may be in flight on one instance; 0 for any number.
    pub max_in_flight: u32,
    /// The model that every instance must serve.
    pub model: Option<String>,
    /// Blocks that the prefix index remembers.
    pub prefix_capacity: usize,
    /// Sent by probes where the engines have an API key.
    pub engine_auth: Option<HeaderValue>,
}

/// All instances at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts the changes of membership.
    pub generation: u64,
    /// In the order in which they joined.
    pub instances: Vec<Arc<Instance>>,
}

impl Snapshot {
    /// The instance with that id.
    pub fn get(&self, id: InstanceId) -> Option<&Arc<Instance>> {
        self.instances.iter().find(|i| i.id() == id)
    }

    /// Instances that serve `phase`, whatever their state.
    pub fn serving(&self, phase: Phase) -> impl Iterator<Item = &Arc<Instance>> {
        self.instances.iter().filter(move |i| serves(i.spec().role, phase))
    }

    /// Whether some instance takes requests for `phase`, though it may be at its limit at the moment.
    pub fn can_serve(&self, phase: Phase) -> bool {
        self.serving(phase).any(|i| i.is_in_service())
    }
}

/// Whether an instance of `role` may be chosen for `phase`.
pub fn serves(role: Role, phase: Phase) -> bool {
    matches!(
        (role, phase),
        (Role::Encode, Phase::Encode)
            | (Role::Prefill | Role::Both, Phase::Prefill)
            | (Role::Decode | Role::Both, Phase::Decode)
    )
}

/// As logs, metrics and `/status` name a role.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Encode => "encode",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Both => "both",
        Role::Render => "render",
    }
}

/// The instances, and the only place where they join and leave.
#[derive(Debug)]
pub struct Fleet {
    snapshot: ArcSwap<Snapshot>,
    settings: FleetSettings,
    next_id: AtomicU32,
    /// Held while membership changes, never while a request is served.
    changing: Mutex<()>,
    changed: watch::Sender<u64>,
    prefixes: PrefixIndex,
}

impl Fleet {
    /// An empty fleet.
    pub fn new(settings: FleetSettings) -> Arc<Self> {
        let prefixes = PrefixIndex::new(settings.prefix_capacity);
        Arc::new(Self {
            snapshot: ArcSwap::default(),
            settings,
            next_id: AtomicU32::new(0),
            changing: Mutex::default(),
            changed: watch::Sender::new(0),
            prefixes,
        })
    }

    /// The fleet as it is now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Notifies of every change of membership or availability.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Who probably holds which prompt prefixes.
    pub fn prefixes(&self) -> &PrefixIndex {
        &self.prefixes
    }

    /// Lets an instance join. It is probed from now on, and can be chosen once a probe has succeeded.
    /// Must be called within the runtime.
    ///
    /// # Errors
    /// [`FleetError::Duplicate`] if its address is there already; an address that was added as prefill
    /// and is added as decode becomes one that serves both.
    pub fn add(self: &Arc<Self>, spec: InstanceSpec) -> Result<Arc<Instance>, FleetError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let instances = self.snapshot.load().instances.clone();
        let Some(at) = instances.iter().position(|i| i.spec().address == spec.address) else {
            return Ok(self.join(instances, self.instance(spec)));
        };
        match (instances[at].spec().role, spec.role) {
            (Role::Prefill, Role::Decode) | (Role::Decode, Role::Prefill) => {
                Ok(self.recast(instances, at, Role::Both))
            }
            _ => Err(FleetError::Duplicate(spec.address)),
        }
    }

    /// Takes an instance out. Its running requests go on; nothing new is sent to it. One that serves both
    /// roles keeps the other if `role` names one.
    ///
    /// # Errors
    /// [`FleetError::Unknown`] if no instance with that address serves in `role` (any role if `None`).
    pub fn remove(self: &Arc<Self>, address: &str, role: Option<Role>) -> Result<(), FleetError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut instances = self.snapshot.load().instances.clone();
        let matches = |i: &Arc<Instance>| {
            i.spec().address == address
                && role.is_none_or(|r| r == i.spec().role || i.spec().role == Role::Both)
        };
        let at = instances.iter().position(matches).ok_or_else(|| FleetError::Unknown(address.to_owned()))?;
        match (instances[at].spec().role, role) {
            (Role::Both, Some(Role::Prefill)) => drop(self.recast(instances, at, Role::Decode)),
            (Role::Both, Some(Role::Decode)) => drop(self.recast(instances, at, Role::Prefill)),
            _ => {
                self.leave(&instances.remove(at));
                self.publish(instances);
            }
        }
        Ok(())
    }

    fn instance(&self, spec: InstanceSpec) -> Arc<Instance> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Arc::new(Instance::new(id, spec, &self.settings))
    }

    fn join(self: &Arc<Self>, instances: Vec<Arc<Instance>>, instance: Arc<Instance>) -> Arc<Instance> {
        let mut instances = instances;
        instances.push(Arc::clone(&instance));
        self.publish(instances);
        probe::start(self, &instance);
        instance
    }

    fn leave(&self, instance: &Instance) {
        instance.retire();
        self.prefixes.forget(instance.id());
    }

    /// An engine serves in another role from now on, as an instance with an id of its own, but as well as
    /// it did.
    fn recast(self: &Arc<Self>, instances: Vec<Arc<Instance>>, at: usize, role: Role) -> Arc<Instance> {
        let mut instances = instances;
        let before = instances.remove(at);
        self.leave(&before);
        let instance = self.instance(InstanceSpec { role, ..before.spec().clone() });
        instance.set_draining(before.is_draining());
        if before.health.is_healthy() {
            instance.health.probe_succeeded();
        }
        self.join(instances, instance)
    }

    fn publish(&self, instances: Vec<Arc<Instance>>) {
        let generation = self.snapshot.load().generation + 1;
        self.snapshot.store(Arc::new(Snapshot { generation, instances }));
        self.availability_changed();
    }

    fn availability_changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(role: Role, address: &str) -> InstanceSpec {
        InstanceSpec::new(role, address.to_owned())
    }

    #[tokio::test]
    async fn ids_are_never_used_twice() {
        let fleet = Fleet::new(FleetSettings::default());
        let first = fleet.add(spec(Role::Prefill, "127.0.0.1:1")).unwrap();
        fleet.remove("127.0.0.1:1", None).unwrap();
        let second = fleet.add(spec(Role::Prefill, "127.0.0.1:1")).unwrap();
        assert_ne!(first.id(), second.id());
        assert_eq!(fleet.snapshot().generation, 3);
    }

    #[tokio::test]
    async fn one_address_in_two_roles_is_one_instance() {
        let fleet = Fleet::new(FleetSettings::default());
        fleet.add(spec(Role::Prefill, "127.0.0.1:1")).unwrap();
        fleet.add(spec(Role::Decode, "127.0.0.1:1")).unwrap();
        assert_eq!(
            fleet.add(spec(Role::Decode, "127.0.0.1:1")).err(),
            Some(FleetError::Duplicate("127.0.0.1:1".into()))
        );
        let snapshot = fleet.snapshot();
        assert_eq!(snapshot.instances.len(), 1);
        assert_eq!(snapshot.serving(Phase::Prefill).count(), 1);
        assert_eq!(snapshot.serving(Phase::Decode).count(), 1);
        fleet.remove("127.0.0.1:1", Some(Role::Prefill)).unwrap();
        let snapshot = fleet.snapshot();
        assert_eq!(snapshot.serving(Phase::Prefill).count(), 0);
        assert_eq!(snapshot.serving(Phase::Decode).count(), 1);
    }

    #[tokio::test]
    async fn another_role_changes_nothing_else() {
        let fleet = Fleet::new(FleetSettings::default());
        let known = fleet.add(InstanceSpec { dp_size: 4, ..spec(Role::Prefill, "127.0.0.1:1") }).unwrap();
        known.health.probe_succeeded();
        let both = fleet.add(spec(Role::Decode, "127.0.0.1:1")).unwrap();
        assert_ne!(both.id(), known.id());
        assert_eq!((both.spec().role, both.spec().dp_size), (Role::Both, 4));
        assert!(both.is_available());
    }

    #[tokio::test]
    async fn a_new_instance_waits_for_its_first_probe() {
        let fleet = Fleet::new(FleetSettings::default());
        fleet.add(spec(Role::Decode, "127.0.0.1:1")).unwrap();
        assert!(!fleet.snapshot().can_serve(Phase::Decode));
        assert!(fleet.remove("127.0.0.1:2", None).is_err());
    }
}
