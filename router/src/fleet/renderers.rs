//! The renderers among the instances. Policies have no part in the choice: any of them gives the same answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use edge_router_policy::InstanceId;

use super::{Fleet, Instance, Snapshot};

impl Snapshot {
    /// Instances that render, whatever their state.
    pub fn renderers(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.instances.iter().filter(|instance| instance.spec().renders())
    }
}

impl Fleet {
    /// The available renderer that has the fewest requests in flight and is not among `tried`; where several
    /// have as few, they take turns.
    pub fn renderer(&self, tried: &[InstanceId]) -> Option<Arc<Instance>> {
        self.idlest(tried, Instance::is_available)
    }

    /// The same for an answer that has begun: where nobody is available, one that is being drained. What runs
    /// goes on.
    pub fn renderer_of_answers(&self, tried: &[InstanceId]) -> Option<Arc<Instance>> {
        let drains = |i: &Instance| i.is_draining() && i.health().is_healthy();
        self.renderer(tried).or_else(|| self.idlest(tried, drains))
    }

    fn idlest(&self, tried: &[InstanceId], may: impl Fn(&Instance) -> bool) -> Option<Arc<Instance>> {
        let snapshot = self.snapshot();
        let may = |i: &&Arc<Instance>| may(i) && !tried.contains(&i.id());
        let free: Vec<_> = snapshot.renderers().filter(may).collect();
        let turn = self.render_turn.fetch_add(1, Ordering::Relaxed) as usize;
        let (later, first) = free.split_at(turn.checked_rem(free.len())?);
        first.iter().chain(later).min_by_key(|i| i.load().in_flight()).map(|i| Arc::clone(i))
    }
}

#[cfg(test)]
mod tests {
    use edge_router_policy::{Phase, Role};

    use super::*;
    use crate::fleet::{FleetSettings, InFlight, InstanceSpec};

    fn fleet(roles: &[Role]) -> Arc<Fleet> {
        let fleet = Fleet::new(FleetSettings::default());
        let spec = |(i, role): (usize, &Role)| InstanceSpec::new(*role, format!("127.0.0.1:{}", i + 1));
        fleet.apply(roles.iter().enumerate().map(spec).collect());
        fleet.snapshot().instances.iter().for_each(|i| i.health.probe_succeeded());
        fleet
    }

    #[tokio::test]
    async fn the_idlest_is_chosen_and_equals_take_turns() {
        let fleet = fleet(&[Role::Decode, Role::Render, Role::Render]);
        let chosen = |tried: &[InstanceId]| fleet.renderer(tried).map(|i| i.id());
        let mut twice = [chosen(&[]), chosen(&[])];
        twice.sort();
        assert_eq!(twice, [Some(1), Some(2)]);
        let busy = InFlight::new(Arc::clone(&fleet.snapshot().instances[1]), 0);
        assert_eq!([chosen(&[]), chosen(&[]), chosen(&[])], [Some(2); 3]);
        assert_eq!((chosen(&[2]), chosen(&[1, 2])), (Some(1), None));
        drop(busy);
        fleet.snapshot().instances[1].set_draining(true);
        assert_eq!([chosen(&[]), chosen(&[])], [Some(2); 2]);
        let goes_on = |tried: &[InstanceId]| fleet.renderer_of_answers(tried).map(|i| i.id());
        assert_eq!((goes_on(&[]), goes_on(&[2]), goes_on(&[1, 2])), (Some(2), Some(1), None));
    }

    #[tokio::test]
    async fn renderers_serve_no_leg() {
        let snapshot = fleet(&[Role::Render]).snapshot();
        assert!(!snapshot.can_serve(Phase::Prefill) && !snapshot.can_serve(Phase::Decode));
        assert_eq!(snapshot.renderers().count(), 1);
    }
}
