//! What a connector needs to know of an instance, from its labels.

use std::borrow::Cow;

use crate::Instance;
use crate::connectors::address;

/// A label that is not as the connector needs it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LabelError {
    /// It is not there.
    #[error("instance {instance} has no label `{label}`: {remedy}")]
    Missing {
        /// Address of the instance.
        instance: String,
        /// Name of the label.
        label: Cow<'static, str>,
        /// Where it comes from.
        remedy: &'static str,
    },
    /// It can't be read.
    #[error("instance {instance}: label {label}=`{value}` must be {expected}")]
    Malformed {
        /// Address of the instance.
        instance: String,
        /// Name of the label.
        label: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
}

/// A label that must be there; `remedy` says where it comes from.
pub(crate) fn required<'a>(
    instance: &'a Instance,
    label: impl Into<Cow<'static, str>>,
    remedy: &'static str,
) -> Result<&'a str, LabelError> {
    let label = label.into();
    match instance.label(&label) {
        Some(value) => Ok(value),
        None => Err(LabelError::Missing { instance: instance.address.clone(), label, remedy }),
    }
}

/// The ids of the engines behind an instance, one for each data-parallel rank:
/// `engine_id` for the first, `engine_id_dp1` and so on for the others.
pub(crate) fn engine_ids(instance: &Instance, remedy: &'static str) -> Result<Vec<String>, LabelError> {
    let name = |rank: u32| match rank {
        0 => Cow::from("engine_id"),
        _ => format!("engine_id_dp{rank}").into(),
    };
    let ids = (0..instance.dp_size.max(1)).map(|rank| required(instance, name(rank), remedy));
    ids.map(|id| id.map(str::to_owned)).collect()
}

pub(crate) fn malformed(
    instance: &Instance,
    label: &'static str,
    value: &str,
    expected: &'static str,
) -> LabelError {
    LabelError::Malformed { instance: instance.address.clone(), label, value: value.to_owned(), expected }
}

/// Host, an IPv6 address without its brackets, and port of `host:port`.
pub(crate) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (before, port) = text.rsplit_once(':')?;
    let host = address::host(text);
    let is_whole = !host.is_empty() && !host.contains(['/', ',', ' ']);
    // An IPv6 address without brackets could end anywhere.
    let is_clear = before.starts_with('[') || !before.contains(':');
    (is_whole && is_clear).then_some((host, self::port(port)?))
}

/// A port that can be dialled.
pub(crate) fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        assert_eq!(host_and_port("10.0.0.1:21001"), Some(("10.0.0.1", 21001)));
        assert_eq!(host_and_port("[2001:db8::7]:1"), Some(("2001:db8::7", 1)));
        for text in ["", "h", ":1", "h:0", "h:x", "::1:5600", "host:h,notify:1", "http://h:1", "a b:1"] {
            assert_eq!(host_and_port(text), None, "{text}");
        }
    }

    #[test]
    fn every_rank_must_have_an_engine_id() {
        let fleet =
            testing::fleet().prefill("p:1").dp_size(3).label("engine_id", "a").label("engine_id_dp1", "b");
        let missing = engine_ids(&fleet.instances()[0], "ask").unwrap_err();
        assert_eq!(missing.to_string(), "instance p:1 has no label `engine_id_dp2`: ask");
        let fleet = fleet.label("engine_id_dp2", "c");
        assert_eq!(engine_ids(&fleet.instances()[0], "ask").unwrap(), ["a", "b", "c"]);
    }
}
