//! A name that stands for many engines, such as that of a headless Kubernetes service: each address that it
//! resolves to is an instance.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use edge_router_policy::Role;
use tokio::time::{MissedTickBehavior, interval};

use super::{Roster, Source};
use crate::fleet::InstanceSpec;

/// The system's resolver.
pub(super) async fn system(name: String) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host(name).await?.collect())
}

/// Resolves `name` (`host:port`) now and every `pause`, and announces its addresses as instances of `role`,
/// until the task is dropped. Without an answer, or with an empty one, the last roster stays.
pub(super) async fn watch<F, Answer>(name: String, role: Role, pause: Duration, resolve: F, source: Source)
where
    F: Fn(String) -> Answer,
    Answer: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match resolve(name.clone()).await {
            Ok(addresses) if addresses.is_empty() => source.failed(format!("{name}: no address")),
            Ok(addresses) => match Roster::new(instances(role, addresses)) {
                Ok(roster) => source.announce(roster),
                Err(error) => source.failed(format!("{name}: {error}")),
            },
            Err(error) => source.failed(format!("{name}: {error}")),
        }
    }
}

/// In an order of their own, for resolvers rotate their answers. An engine in a cluster with both address
/// families has one of each, and must not count twice: IPv4 goes before IPv6.
fn instances(role: Role, mut addresses: Vec<SocketAddr>) -> impl Iterator<Item = InstanceSpec> {
    if addresses.iter().any(SocketAddr::is_ipv4) {
        addresses.retain(SocketAddr::is_ipv4);
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into_iter().map(move |address| InstanceSpec::new(role, address.to_string()))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::discovery::Discovery;
    use crate::fleet::{Fleet, FleetSettings};

    fn found(addresses: &[&str]) -> io::Result<Vec<SocketAddr>> {
        Ok(addresses.iter().map(|address| address.parse().unwrap()).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn the_fleet_follows_the_answers_and_outlives_their_absence() {
        let fleet = Fleet::new(FleetSettings::default());
        let discovery = Discovery::new(Arc::clone(&fleet));
        let answers = Mutex::new(VecDeque::from([
            found(&["10.0.0.2:80", "10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"]),
            found(&["10.0.0.1:80", "10.0.0.2:80"]),
            Err(io::Error::other("NXDOMAIN")),
            found(&[]),
            found(&["10.0.0.3:80", "10.0.0.1:80"]),
            found(&["[fd00::2]:80"]),
        ]));
        let resolve = move |name: String| {
            assert_eq!(name, "engines:80");
            let next = answers.lock().unwrap().pop_front();
            async { next.unwrap_or_else(|| Err(io::Error::other("no more"))) }
        };
        let source = discovery.source("dns");
        tokio::spawn(watch("engines:80".into(), Role::Decode, Duration::from_secs(5), resolve, source));
        let mut ids = Vec::new();
        for (expected, problem) in [
            (&["10.0.0.1:80", "10.0.0.2:80"][..], None),
            (&["10.0.0.1:80", "10.0.0.2:80"], None),
            (&["10.0.0.1:80", "10.0.0.2:80"], Some("engines:80: NXDOMAIN")),
            (&["10.0.0.1:80", "10.0.0.2:80"], Some("engines:80: no address")),
            (&["10.0.0.1:80", "10.0.0.3:80"], None),
            (&["[fd00::2]:80"], None),
        ] {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let snapshot = fleet.snapshot();
            let addresses: Vec<_> = snapshot.instances.iter().map(|i| i.address()).collect();
            assert_eq!((addresses, discovery.status()[1].problem.as_deref()), (expected.to_vec(), problem));
            ids.push(snapshot.instances[0].id());
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        assert_eq!(ids, [0, 0, 0, 0, 0, 3], "what stays is the same instance");
    }
}
