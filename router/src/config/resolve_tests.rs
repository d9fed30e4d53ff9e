//! Settings from files, and what is said of wrong ones.

use edge_router_policy::Role;

use super::*;
use crate::config::WithoutEncode;

fn from_toml(text: &str) -> Result<Config, ConfigError> {
    resolve(&toml::from_str(text).unwrap())
}

fn refusal(text: &str) -> String {
    from_toml(text).unwrap_err().to_string()
}

#[test]
fn nothing_needs_to_be_set() {
    let config = from_toml("").unwrap();
    assert_eq!(config.listen, ["127.0.0.1:8000".parse().unwrap()]);
    assert!(config.instances.is_empty());
    assert_eq!(config.session_keys.len(), 4);
}

#[test]
fn a_port_alone_means_all_interfaces_as_in_the_demo_proxy() {
    assert_eq!(from_toml("port = 9000").unwrap().listen, ["0.0.0.0:9000".parse().unwrap()]);
    assert_eq!(
        from_toml("port = 9000\nlisten = ['[::1]:80']").unwrap().listen,
        ["[::1]:80".parse().unwrap()]
    );
}

#[test]
fn a_port_on_the_command_line_wins_over_addresses_in_the_file() {
    let file: Settings = toml::from_str("listen = ['0.0.0.0:8080']").unwrap();
    let typed = Settings { port: Some(9000), ..Settings::default() };
    assert_eq!(resolve(&typed.or(file)).unwrap().listen, ["0.0.0.0:9000".parse().unwrap()]);
}

#[test]
fn instances_in_both_forms() {
    let config = from_toml(
        "prefill = ['a:1', 'http://b:2']\ndecode = ['[::1]:3']\nrender = ['d:5']\n\
         [[instance]]\nrole = 'both'\naddress = 'c:4'\ndp_size = 2\nlabels = { zone = 'x' }\n",
    )
    .unwrap();
    let addresses: Vec<_> = config.instances.iter().map(|i| (i.role, i.address.as_str())).collect();
    let expected = [
        (Role::Prefill, "a:1"),
        (Role::Prefill, "b:2"),
        (Role::Decode, "[::1]:3"),
        (Role::Render, "d:5"),
        (Role::Both, "c:4"),
    ];
    assert_eq!(addresses, expected);
    assert_eq!((config.instances[4].dp_size, config.instances[4].labels.len()), (2, 1));
}

#[test]
fn encoders_are_instances_of_their_own() {
    let config = from_toml(
        "encode = ['e:1']\ndecode = ['d:1']\nwithout_encode = 'reject'\nencode_max_batch = 4\n\
         [[instance]]\nrole = 'encode'\naddress = 'e:2'\n",
    )
    .unwrap();
    let encoders = config.instances.iter().filter(|i| i.role == Role::Encode).map(|i| i.address.as_str());
    assert_eq!(encoders.collect::<Vec<_>>(), ["e:1", "e:2"]);
    assert_eq!((config.without_encode, config.encode_max_batch), (WithoutEncode::Reject, 4));
}

#[test]
fn wrong_settings_are_named_with_a_remedy() {
    for (text, said) in [
        (
            "prefill = ['host']",
            "prefill: 'host': no port; give host:port, such as 10.0.0.1:8000 or [::1]:8000",
        ),
        ("kv_lease_s = 5", "kv_lease_margin_s: must be below kv_lease_s, or no handle could ever be used"),
        ("policy_memory_mib = 17592186044416", "policy_memory_mib: must be 2 to 4096"),
        ("prefix_capacity = 0", "prefix_capacity: must be 1 to 100000000"),
        ("unhealthy_after = 0", "unhealthy_after: must be above 0"),
        (
            "prefill_dns = ['engines']",
            "prefill_dns: 'engines': no port; give host:port, such as 10.0.0.1:8000 or [::1]:8000",
        ),
        ("mooncake_bootstrap = ['a:1']", "mooncake_bootstrap: 'a:1' has no '='; give INSTANCE=SERVER"),
        ("dns_interval_s = 0", "dns_interval_s: must be above 0"),
        (
            "registration_listen = '36367'",
            "registration_listen: '36367': give ip:port, such as 0.0.0.0:36367",
        ),
        ("registration_ttl_s = 0", "registration_ttl_s: must be above 0"),
        ("session_key = ['x']", "session_key: 'x' is neither header:NAME nor field:NAME"),
        (
            "[[instance]]\nrole = 'x'\naddress = 'a:1'",
            "instance.role: 'x' is none of prefill, decode, both, encode, render",
        ),
        (
            "[policy_config.nope]\n",
            "policy_config: there is no policy 'nope'; it must be given by --policy as well",
        ),
    ] {
        assert_eq!(refusal(text), said);
    }
    let flag = Settings { policy_config_flags: vec!["cache_aware".into()], ..Settings::default() };
    assert!(resolve(&flag).unwrap_err().to_string().contains("'cache_aware' has no '='"));
    assert!(
        toml::from_str::<Settings>("prefil = []").unwrap_err().to_string().contains("unknown field `prefil`")
    );
}

#[test]
fn a_missing_policy_is_named_with_those_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let missing =
        |name: &str| refusal(&format!("policy = ['{name}']\npolicies_dir = '{}'", dir.path().display()));
    assert!(missing("cache_aware.wasm").contains("no policies; `cargo xtask policies` builds them"));
    std::fs::write(dir.path().join("round_robin.wasm"), "").unwrap();
    assert!(missing("cache_aware").ends_with("has round_robin.wasm"), "{}", missing("cache_aware"));
    let found = format!("policy = ['round_robin']\npolicies_dir = '{}'", dir.path().display());
    assert_eq!(from_toml(&found).unwrap().policies[0].path, dir.path().join("round_robin.wasm"));
}

#[test]
fn the_command_line_wins_and_lists_are_not_mixed() {
    let typed = Settings { retries: Some(1), prefill: vec!["a:1".into()], ..Settings::default() };
    let file: Settings = toml::from_str("retries = 5\nprefill = ['b:1']\ndecode = ['c:1']").unwrap();
    let both = typed.or(file);
    assert_eq!(
        (both.retries, both.prefill, both.decode),
        (Some(1), vec!["a:1".into()], vec!["c:1".to_owned()])
    );
}
