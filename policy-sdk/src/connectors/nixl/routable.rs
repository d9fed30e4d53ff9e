//! A side channel that other hosts can't reach.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::connectors::address::host;
use crate::connectors::params::Params;

/// The params with a `remote_host` that decode can dial.
///
/// Engines without `VLLM_NIXL_SIDE_CHANNEL_HOST` say `localhost`, which is
/// decode's own host to decode. A loopback or unspecified `remote_host` becomes
/// the host of `prefill_address` (`host:port`), unless that is such a one
/// itself. Any other is left alone: the side channel may well be on another
/// network than HTTP. The rest of the text stays byte for byte.
pub fn with_routable_host<'a>(kv_params: &'a str, prefill_address: &str) -> Cow<'a, str> {
    let prefill_host = host(prefill_address);
    if !is_local(prefill_host)
        && let Ok(params) = Params::parse(kv_params)
        && params.text("remote_host").is_some_and(|host| is_local(&host))
    {
        let host = serde_json::Value::from(prefill_host).to_string();
        return params.with(&[("remote_host", host)]).into();
    }
    kv_params.into()
}

/// Whether the host means another machine on every machine.
fn is_local(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback() || ip.is_unspecified(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(host: &str, prefill_address: &str) -> String {
        let params = format!("{{ \"remote_port\": 5.60e3,\"remote_host\" :\"{host}\", \"x\":[] }}");
        let rewritten = with_routable_host(&params, prefill_address);
        let host = Params::parse(&rewritten).unwrap().text("remote_host").unwrap();
        assert_eq!(rewritten, format!("{{ \"remote_port\": 5.60e3,\"remote_host\" :\"{host}\", \"x\":[] }}"));
        host
    }

    #[test]
    fn a_host_that_means_another_machine_everywhere_becomes_prefills() {
        for local in
            ["localhost", "LocalHost", "127.0.0.1", "127.8.8.8", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"]
        {
            assert_eq!(rewritten(local, "10.0.0.7:8000"), "10.0.0.7", "{local}");
        }
        assert_eq!(rewritten("localhost", "[2001:db8::7]:8000"), "2001:db8::7");
        assert_eq!(rewritten("localhost", "prefill-0:8000"), "prefill-0");
    }

    #[test]
    fn any_other_host_is_left_alone() {
        for host in ["192.168.9.9", "ib0.prefill-0", "2001:db8::1"] {
            assert_eq!(rewritten(host, "10.0.0.7:8000"), host);
        }
    }

    #[test]
    fn on_one_machine_nothing_changes() {
        for address in ["127.0.0.1:8000", "localhost:8000", "[::1]:8000"] {
            assert_eq!(rewritten("localhost", address), "localhost");
        }
    }

    #[test]
    fn what_has_no_host_is_handed_back() {
        for params in ["null", "{}", r#"{"remote_host": null}"#, r#"{"remote_host": 7}"#] {
            assert_eq!(with_routable_host(params, "10.0.0.7:8000"), params);
        }
    }
}
