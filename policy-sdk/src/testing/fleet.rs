//! Hand-made fleets.

use crate::{Candidate, Candidates, Instance, InstanceId, Phase, Role};

/// Instances and their load; made by [`fleet`].
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    members: Vec<(Instance, Candidate)>,
    last_id: InstanceId,
}

/// A fleet without instances.
pub fn fleet() -> Fleet {
    Fleet::default()
}

impl Fleet {
    /// Adds an idle prefill instance.
    #[must_use]
    pub fn prefill(self, address: &str) -> Self {
        self.instance(Role::Prefill, address)
    }

    /// Adds an idle decode instance.
    #[must_use]
    pub fn decode(self, address: &str) -> Self {
        self.instance(Role::Decode, address)
    }

    /// Adds an idle instance of any role. As in the router, ids count up and
    /// are never given out twice.
    #[must_use]
    pub fn instance(mut self, role: Role, address: &str) -> Self {
        self.last_id += 1;
        let instance = Instance {
            id: self.last_id,
            role,
            address: address.to_owned(),
            dp_size: 1,
            tp_size: 1,
            labels: Vec::new(),
        };
        self.members.push((instance, Candidate { id: self.last_id, ..Candidate::default() }));
        self
    }

    /// Gives the instance that was added last a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        if let Some((instance, _)) = self.members.last_mut() {
            instance.labels.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Gives the instance that was added last so many data-parallel ranks.
    #[must_use]
    pub fn dp_size(mut self, dp_size: u32) -> Self {
        if let Some((instance, _)) = self.members.last_mut() {
            instance.dp_size = dp_size;
        }
        self
    }

    /// Gives the instance that was added last this tensor-parallel size.
    #[must_use]
    pub fn tp_size(mut self, tp_size: u32) -> Self {
        if let Some((instance, _)) = self.members.last_mut() {
            instance.tp_size = tp_size;
        }
        self
    }

    /// Takes an instance out.
    pub fn remove(&mut self, address: &str) {
        self.members.retain(|(instance, _)| instance.address != address);
    }

    /// The figures of the instance at this address, to be changed.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn load(&mut self, address: &str) -> &mut Candidate {
        match self.members.iter_mut().find(|(instance, _)| instance.address == address) {
            Some((_, load)) => load,
            None => panic!("no instance at {address} in this fleet"),
        }
    }

    /// The address of an instance.
    pub fn address(&self, id: InstanceId) -> Option<&str> {
        self.members
            .iter()
            .find(|(instance, _)| instance.id == id)
            .map(|(instance, _)| instance.address.as_str())
    }

    /// What [`Policy::instances_changed`](crate::Policy::instances_changed) is
    /// given.
    pub fn instances(&self) -> Vec<Instance> {
        self.members.iter().map(|(instance, _)| instance.clone()).collect()
    }

    /// The instances that serve this phase, and their load.
    pub fn candidates(&self, phase: Phase) -> Candidates {
        self.members
            .iter()
            .filter(|(instance, _)| serves(instance.role, phase))
            .map(|(_, load)| *load)
            .collect()
    }
}

fn serves(role: Role, phase: Phase) -> bool {
    match phase {
        Phase::Encode => role == Role::Encode,
        Phase::Prefill => matches!(role, Role::Prefill | Role::Both),
        Phase::Decode => matches!(role, Role::Decode | Role::Both),
    }
}
