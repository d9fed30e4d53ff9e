//! Who has been heard of lately.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::message::Refusal;
use crate::discovery::Roster;
use crate::fleet::InstanceSpec;

/// Engines that may be registered.
pub(super) const MAX: usize = 1024;

/// The engines by their HTTP address, with the time of the last heartbeat.
#[derive(Debug, Default)]
pub(super) struct Registrants(BTreeMap<String, (InstanceSpec, Instant)>);

impl Registrants {
    /// An engine says that it is there; returns whether it says something new.
    pub(super) fn heard(&mut self, spec: InstanceSpec, now: Instant) -> Result<bool, Refusal> {
        let full = self.0.len() >= MAX;
        match self.0.get_mut(&spec.address) {
            Some((known, seen)) => {
                *seen = now;
                let changed = *known != spec;
                *known = spec;
                Ok(changed)
            }
            None if full => Err(Refusal::Full),
            None => {
                self.0.insert(spec.address.clone(), (spec, now));
                Ok(true)
            }
        }
    }

    /// Forgets those of whom nothing was heard for `ttl`; returns whether there were any.
    pub(super) fn expire(&mut self, now: Instant, ttl: Duration) -> bool {
        let before = self.0.len();
        self.0.retain(|_, (_, seen)| now.duration_since(*seen) < ttl);
        self.0.len() != before
    }

    /// All of them.
    pub(super) fn roster(&self) -> Roster {
        Roster::of_distinct(self.0.values().map(|(spec, _)| spec.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use edge_router_policy::Role;

    use super::*;

    fn spec(address: &str) -> InstanceSpec {
        InstanceSpec::new(Role::Prefill, address.to_owned())
    }

    #[test]
    fn their_number_is_limited_but_those_who_are_known_go_on() {
        let (mut registrants, now) = (Registrants::default(), Instant::now());
        for n in 0..MAX {
            assert!(registrants.heard(spec(&format!("a:{n}")), now).unwrap());
        }
        assert!(matches!(registrants.heard(spec("b:1"), now), Err(Refusal::Full)));
        assert!(!registrants.heard(spec("a:1"), now).unwrap());
        assert!(registrants.heard(InstanceSpec { dp_size: 2, ..spec("a:1") }, now).unwrap());
        let ttl = Duration::from_secs(12);
        assert!(!registrants.expire(now + Duration::from_secs(11), ttl));
        assert!(registrants.expire(now + ttl, ttl));
        assert_eq!(registrants.roster(), Roster::default());
    }
}
