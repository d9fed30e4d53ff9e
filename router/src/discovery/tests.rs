//! Several sources, one fleet.

use super::*;
use crate::fleet::{FleetSettings, role_name};

fn spec(role: Role, address: &str) -> InstanceSpec {
    InstanceSpec::new(role, address.to_owned())
}

fn prefill(address: &str) -> InstanceSpec {
    spec(Role::Prefill, address)
}

fn roster<const N: usize>(instances: [InstanceSpec; N]) -> Roster {
    Roster::new(instances).unwrap()
}

fn discovery() -> Arc<Discovery> {
    Discovery::new(Fleet::new(FleetSettings::default()))
}

/// `address=role` of every instance.
fn fleet(discovery: &Discovery) -> Vec<String> {
    let snapshot = discovery.fleet.snapshot();
    let instance = |i: &Arc<crate::fleet::Instance>| format!("{}={}", i.address(), role_name(i.spec().role));
    snapshot.instances.iter().map(instance).collect()
}

#[test]
fn an_address_is_named_once_in_each_role() {
    let both = roster([prefill("a:1"), prefill("b:1"), spec(Role::Decode, "a:1")]);
    assert_eq!(both, roster([spec(Role::Both, "a:1"), prefill("b:1")]));
    let mut renders = spec(Role::Decode, "a:1");
    renders.set_renders(true);
    for roles in [[Role::Decode, Role::Render], [Role::Render, Role::Decode]] {
        assert_eq!(roster(roles.map(|role| spec(role, "a:1"))), roster([renders.clone()]));
    }
    assert!(renders.renders() && spec(Role::Render, "a:1").renders() && !prefill("a:1").renders());
    let twice = Roster::new([spec(Role::Render, "a:1"), spec(Role::Render, "a:1")]);
    assert_eq!(twice, Err(RosterError::Twice("a:1".into())));
    let twice = Err(RosterError::Twice("a:1".into()));
    assert_eq!(Roster::new([prefill("a:1"), prefill("a:1")]), twice);
    assert_eq!(Roster::new([spec(Role::Both, "a:1"), prefill("a:1")]), twice);
}

#[tokio::test]
async fn an_instance_stays_until_the_last_source_drops_it() {
    let discovery = discovery();
    let (file, dns) = (discovery.source("file"), discovery.source("dns"));
    file.announce(roster([prefill("a:1"), prefill("b:1")]));
    dns.announce(roster([prefill("a:1")]));
    assert_eq!(fleet(&discovery), ["a:1=prefill", "b:1=prefill"]);
    assert_eq!(discovery.announcers()["a:1"], ["file", "dns"]);
    let id = discovery.fleet.snapshot().instances[0].id();

    file.announce(Roster::default());
    assert_eq!(fleet(&discovery), ["a:1=prefill"]);
    assert_eq!(discovery.fleet.snapshot().instances[0].id(), id, "for requests nothing has changed");
    dns.announce(Roster::default());
    assert!(fleet(&discovery).is_empty());
}

#[tokio::test]
async fn who_knows_a_connectors_default_lease_does_not_overrule_who_knows_better() {
    let discovery = discovery();
    let [file, live] = ["file", "registration"].map(|name| discovery.source(name));
    let bootstrap = discovery.describing_source("bootstrap");
    let leased = |seconds: &str| {
        let labels = vec![("kv_lease_s".to_owned(), seconds.to_owned())];
        roster([InstanceSpec { labels, ..prefill("a:1") }])
    };
    let known = || discovery.fleet.snapshot().instances[0].spec().labels.clone();
    live.announce(leased("60"));
    assert_eq!(known()[0].1, "60");
    for (said, expected) in [(leased("20"), "20"), (roster([prefill("a:1")]), "60")] {
        file.announce(said);
        bootstrap.announce(leased("480"));
        assert_eq!(known()[0].1, expected);
    }
}

#[tokio::test]
async fn what_several_say_of_an_instance_is_put_together() {
    let discovery = discovery();
    let (file, live) = (discovery.source("file"), discovery.source("registration"));
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    file.announce(roster([InstanceSpec {
        labels: vec![label("zone", "b"), label("mode", "READ")],
        ..prefill("a:1")
    }]));
    live.announce(roster([InstanceSpec {
        dp_size: 8,
        labels: vec![label("mode", "WRITE")],
        ..spec(Role::Decode, "a:1")
    }]));
    let expected = InstanceSpec {
        dp_size: 8,
        labels: vec![label("mode", "WRITE"), label("zone", "b")],
        ..spec(Role::Both, "a:1")
    };
    assert_eq!(*discovery.fleet.snapshot().instances[0].spec(), expected);
}

#[tokio::test]
async fn a_source_that_fails_keeps_its_roster_and_says_why() {
    let discovery = discovery();
    let file = discovery.source("file");
    file.announce(roster([prefill("a:1")]));
    file.failed("no such file");
    assert_eq!(fleet(&discovery), ["a:1=prefill"]);
    let [_, status] = &discovery.status()[..] else { panic!("two sources") };
    assert_eq!((status.instances, status.problem.as_deref()), (1, Some("no such file")));
    file.announce(roster([prefill("a:1")]));
    assert_eq!(discovery.status()[1].problem, None);
}

#[tokio::test]
async fn what_the_admin_removes_is_out_until_it_is_announced_anew() {
    let discovery = discovery();
    let file = discovery.source("file");
    let both = || roster([prefill("a:1"), prefill("b:1")]);
    file.announce(both());
    discovery.remove("a:1", None).unwrap();
    assert_eq!(discovery.remove("a:1", None), Err(MembershipError::Unknown("a:1".into())));
    assert!(!discovery.announcers().contains_key("a:1"));
    file.announce(both());
    assert_eq!(fleet(&discovery), ["b:1=prefill"], "the file says nothing new");

    // Dropped and announced again.
    file.announce(roster([prefill("b:1")]));
    file.announce(both());
    assert_eq!(fleet(&discovery), ["b:1=prefill", "a:1=prefill"]);

    // Announced as another.
    discovery.remove("a:1", None).unwrap();
    file.announce(roster([InstanceSpec { dp_size: 2, ..prefill("a:1") }, prefill("b:1")]));
    assert_eq!(fleet(&discovery), ["b:1=prefill", "a:1=prefill"]);

    // Added by hand.
    discovery.remove("b:1", None).unwrap();
    discovery.add(prefill("b:1")).unwrap();
    assert_eq!(discovery.announcers()["b:1"], ["admin"]);
    file.announce(Roster::default());
    assert_eq!(fleet(&discovery), ["b:1=prefill"]);
}

#[tokio::test]
async fn who_only_describes_keeps_nobody_and_outlives_a_removal() {
    let discovery = discovery();
    let (file, more) = (discovery.source("file"), discovery.describing_source("more"));
    let labels = vec![("engine_id".to_owned(), "x".to_owned())];
    more.announce(roster([InstanceSpec { labels: labels.clone(), dp_size: 2, ..prefill("a:1") }]));
    assert!(fleet(&discovery).is_empty());
    file.announce(roster([spec(Role::Both, "a:1")]));
    for _ in 0..2 {
        let now = discovery.fleet.snapshot().instances[0].spec().clone();
        assert_eq!((now.role, now.dp_size, &now.labels), (Role::Both, 2, &labels));
        assert_eq!(discovery.announcers()["a:1"], ["file"]);
        discovery.remove("a:1", None).unwrap();
        assert!(fleet(&discovery).is_empty());
        discovery.add(spec(Role::Both, "a:1")).unwrap();
        file.announce(Roster::default());
        file.announce(roster([spec(Role::Both, "a:1")]));
        discovery.remove("a:1", None).unwrap();
        file.announce(Roster::default());
        file.announce(roster([spec(Role::Both, "a:1")]));
    }
}

#[tokio::test]
async fn one_address_has_two_roles_and_gives_one_up() {
    let discovery = discovery();
    let file = discovery.source("file");
    file.announce(roster([prefill("a:1")]));
    discovery.add(spec(Role::Decode, "a:1")).unwrap();
    assert_eq!(fleet(&discovery), ["a:1=both"]);
    for role in [Role::Prefill, Role::Decode, Role::Both] {
        let refused = discovery.add(spec(role, "a:1"));
        assert_eq!(refused, Err(MembershipError::Duplicate("a:1".into())));
    }
    discovery.remove("a:1", Some(Role::Prefill)).unwrap();
    assert_eq!(fleet(&discovery), ["a:1=decode"]);
    let gone = discovery.remove("a:1", Some(Role::Prefill));
    assert_eq!(gone, Err(MembershipError::Unknown("a:1".into())));
    discovery.remove("a:1", Some(Role::Decode)).unwrap();
    assert!(fleet(&discovery).is_empty());
}
