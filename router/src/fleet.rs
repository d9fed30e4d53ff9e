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
mod renderers;
mod scrape;
mod spec;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use edge_router_policy::{InstanceId, Phase, Role};
use http::HeaderValue;
use tokio::sync::watch;

pub use ask::ask;
pub use candidates::{Choice, Prefix};
pub use health::{HealthSettings, HealthState};
pub use instance::Instance;
pub use load::InFlight;
pub use prefix_index::PrefixIndex;
pub use spec::{EC_ZMQ_ADDRS, InstanceSpec, RENDER, parse_address};

use crate::upstream::PoolSettings;

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

/// The instances, and the only place where they join and leave. Which there should be, discovery says.
#[derive(Debug)]
pub struct Fleet {
    snapshot: ArcSwap<Snapshot>,
    settings: FleetSettings,
    next_id: AtomicU32,
    /// Held while membership changes, never while a request is served.
    changing: Mutex<()>,
    changed: watch::Sender<u64>,
    prefixes: PrefixIndex,
    /// Whose turn it is among renderers.
    render_turn: AtomicU32,
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
            render_turn: AtomicU32::new(0),
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

    /// Makes the fleet consist of `wanted`, in which no address may come twice. An instance that is as it
    /// was stays; one of which something else is said now goes on as another, with an id of its own; those
    /// that are new are probed, and can be chosen once a probe has succeeded. What runs on an instance that
    /// leaves goes on. Must be called within the runtime.
    pub fn apply(self: &Arc<Self>, wanted: Vec<InstanceSpec>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        let known: HashMap<_, _> = before.instances.iter().map(|i| (i.address(), i)).collect();
        let (mut stay, mut joined) = (HashSet::new(), Vec::new());
        for spec in wanted {
            match known.get(&*spec.address) {
                Some(same) if *same.spec() == spec => {
                    stay.insert(same.id());
                }
                Some(other) => joined.push(self.successor(other, spec)),
                None => joined.push(self.instance(spec)),
            }
        }
        let (mut instances, left): (Vec<_>, Vec<_>) =
            before.instances.iter().cloned().partition(|instance| stay.contains(&instance.id()));
        if left.is_empty() && joined.is_empty() {
            return;
        }
        instances.extend(joined.iter().cloned());
        self.publish(instances);
        left.iter().for_each(|instance| self.leave(instance));
        joined.iter().for_each(|instance| self.join(instance));
    }

    fn instance(&self, spec: InstanceSpec) -> Arc<Instance> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Arc::new(Instance::new(id, spec, &self.settings))
    }

    /// The engine at the same address under a new description: as well as it was, and at rest if it was.
    fn successor(&self, before: &Instance, spec: InstanceSpec) -> Arc<Instance> {
        let instance = self.instance(spec);
        instance.set_draining(before.is_draining());
        if before.health.is_healthy() {
            instance.health.probe_succeeded();
        }
        instance
    }

    fn join(self: &Arc<Self>, instance: &Arc<Instance>) {
        let (address, role) = (instance.address(), role_name(instance.spec().role));
        tracing::info!(instance = address, role, id = instance.id(), "instance joins");
        probe::start(self, instance);
    }

    fn leave(&self, instance: &Instance) {
        let (address, role) = (instance.address(), role_name(instance.spec().role));
        tracing::info!(instance = address, role, id = instance.id(), "instance leaves");
        instance.retire();
        self.prefixes.forget(instance.id());
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

    fn ids(fleet: &Fleet) -> Vec<InstanceId> {
        fleet.snapshot().instances.iter().map(|i| i.id()).collect()
    }

    #[tokio::test]
    async fn ids_are_never_used_twice_and_what_stays_keeps_its_own() {
        let fleet = Fleet::new(FleetSettings::default());
        let (a, b, c) = (spec(Role::Prefill, "a:1"), spec(Role::Decode, "b:1"), spec(Role::Decode, "c:1"));
        fleet.apply(vec![a.clone(), b.clone(), c.clone()]);
        assert_eq!(ids(&fleet), [0, 1, 2]);
        fleet.apply(vec![c.clone(), a.clone()]);
        assert_eq!(ids(&fleet), [0, 2]);
        let generation = fleet.snapshot().generation;
        fleet.apply(vec![a.clone(), c.clone()]);
        assert_eq!(fleet.snapshot().generation, generation, "nothing has changed");
        fleet.apply(vec![a, b, c]);
        assert_eq!(ids(&fleet), [0, 2, 3]);
    }

    #[tokio::test]
    async fn another_description_is_another_instance_and_changes_nothing_else() {
        let fleet = Fleet::new(FleetSettings::default());
        let before = spec(Role::Prefill, "a:1");
        fleet.apply(vec![before.clone()]);
        let known = Arc::clone(&fleet.snapshot().instances[0]);
        known.health.probe_succeeded();
        known.set_draining(true);
        for changed in [
            InstanceSpec { role: Role::Both, ..before.clone() },
            InstanceSpec { dp_size: 2, ..before.clone() },
            InstanceSpec { tp_size: 2, ..before.clone() },
            InstanceSpec { labels: vec![("zone".into(), "b".into())], ..before.clone() },
        ] {
            let last = ids(&fleet)[0];
            fleet.apply(vec![changed.clone()]);
            let snapshot = fleet.snapshot();
            let [now] = &*snapshot.instances else { panic!("one instance") };
            assert!(now.id() > last && *now.spec() == changed);
            assert!(now.health.is_healthy() && now.is_draining());
        }
        assert!(known.retired.is_cancelled());
    }

    #[tokio::test]
    async fn a_new_instance_waits_for_its_first_probe() {
        let fleet = Fleet::new(FleetSettings::default());
        fleet.apply(vec![spec(Role::Decode, "127.0.0.1:1")]);
        assert!(!fleet.snapshot().can_serve(Phase::Decode));
    }
}
