//! Checks what a policy wants to do to a leg before it is done.

use edge_router_policy::connectors::KV_TRANSFER_PARAMS;
use edge_router_policy::{Edit, Leg};
use http::{HeaderName, HeaderValue};

use super::instance::Fault;
use crate::body::splice;
use crate::headers::{self, CREDENTIALS, HOP_BY_HOP, PER_LEG};

const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// A leg that can be sent.
#[derive(Debug, Default, Clone)]
pub struct CheckedLeg {
    /// Edits of the body.
    pub edits: Vec<Edit>,
    /// Headers to add.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl CheckedLeg {
    /// JSON texts that the leg's KV transfer params are set to; the last one counts.
    pub fn params(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.edits.iter().filter_map(|edit| match edit {
            Edit::Set { name, value } if name == KV_TRANSFER_PARAMS => Some(&**value),
            _ => None,
        })
    }

    /// Whether KV transfer params are sent with it.
    pub fn has_params(&self) -> bool {
        self.params().next_back().is_some_and(|params| params != "null")
    }

    /// Takes the KV transfer params out.
    pub fn drop_params(&mut self) {
        self.edits.retain(|edit| !matches!(edit, Edit::Set { name, .. } if name == KV_TRANSFER_PARAMS));
    }

    /// The request id that the policy wants in place of the router's.
    pub fn request_id(&self) -> Option<&HeaderValue> {
        self.headers.iter().rev().find(|(name, _)| name == "x-request-id").map(|(_, value)| value)
    }
}

pub(super) fn check(leg: Leg) -> Result<CheckedLeg, Fault> {
    splice::check(&leg.edits).map_err(|e| Fault::BadDecision(e.to_string()))?;
    if leg.headers.len() > MAX_HEADERS {
        return Err(Fault::BadDecision(format!(
            "{} headers; at most {MAX_HEADERS} are allowed",
            leg.headers.len()
        )));
    }
    let headers = leg.headers.iter().map(|(name, value)| header(name, value)).collect::<Result<_, _>>()?;
    Ok(CheckedLeg { edits: leg.edits, headers })
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Fault> {
    let shown: String = name.chars().take(64).collect();
    let bad = |why: &str| Fault::BadDecision(format!("header {shown:?} {why}"));
    // They belong to the connection, to the framing, or are credentials.
    let not_its_own = [&HOP_BY_HOP[..], &CREDENTIALS, &PER_LEG, &["content-type"]];
    if not_its_own.iter().any(|kind| headers::is(name, kind)) {
        return Err(bad("must not be set by a policy"));
    }
    if value.len() > MAX_HEADER_BYTES {
        return Err(bad("is too long"));
    }
    let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
    parsed.ok_or_else(|| bad("is not a valid header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_framing_and_credentials_are_off_limits() {
        for name in ["Host", "content-length", "Transfer-Encoding", "AUTHORIZATION", "cookie", "connection"] {
            assert!(check(Leg::new().header(name, "x")).is_err(), "{name}");
        }
        assert!(check(Leg::new().header("x-data-parallel-rank", "1").set("a", "1")).is_ok());
    }

    #[test]
    fn what_no_parser_would_take_is_refused() {
        for (name, value) in [("x y", "1"), ("", "1"), ("x", "a\r\nb: c"), ("x", "\0")] {
            assert!(check(Leg::new().header(name, value)).is_err(), "{name:?}: {value:?}");
        }
        assert!(check(Leg::new().set("a", "{")).is_err());
    }
}
