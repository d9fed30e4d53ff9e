//! NIXL, push: decode registers its blocks with prefill, which writes into
//! them. Run serially, prefill's own answer names all coordinates, so that no
//! engine ids need to be configured; to start both legs together, decode is
//! told them from [labels](Coordinates).
//!
//! Prefill finds the registration by the request id, so both legs must carry
//! the same `X-Request-Id`, endpoint and `n` (vLLM 0.33, `push_worker.py`): the
//! router sees to that.

use super::nixl::{self, Unusable};
use super::params::Params;
use crate::{Leg, Request};

pub use coordinates::Coordinates;

mod coordinates;

/// The prefill leg, which is that of pull.
pub fn prefill_leg(request: &Request<'_>) -> Leg {
    nixl::prefill_leg(request)
}

/// Why prefill's answer is not one of push.
#[derive(Debug, thiserror::Error)]
pub enum NotPush {
    /// The answer of an engine with the pull connector, or an older one.
    #[error(
        "prefill answered with transfer mode {0}: run the policy `nixl` in place of `nixl_push`, \
         or the engines with NixlPushConnector"
    )]
    OtherMode(String),
    /// Decode could not work with it.
    #[error("prefill's answer can't be handed over: {0}")]
    Unusable(#[from] Unusable),
}

/// The decode leg: the client's body and what prefill returned, byte for byte.
/// If it returned nothing, decode computes the prompt itself.
///
/// # Errors
///
/// When the params are not those of push.
pub fn decode_leg(kv_params: Option<&str>) -> Result<Leg, NotPush> {
    let Some(kv_params) = kv_params else { return Ok(Leg::new()) };
    let params = Params::parse(kv_params).map_err(Unusable::from)?;
    match params.text("transfer_mode").as_deref() {
        Some("push") => {
            nixl::usable(kv_params)?;
            Ok(nixl::decode_leg(Some(kv_params)))
        }
        other => Err(NotPush::OtherMode(other.map_or("(none)".to_owned(), |mode| format!("`{mode}`")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::KV_TRANSFER_PARAMS;
    use crate::connectors::golden::{assert_leg, golden, set_value};
    use crate::testing;

    const ANSWER: &str = golden!("nixl_push/prefill_answer");

    fn refusal(params: &str) -> String {
        decode_leg(Some(params)).unwrap_err().to_string()
    }

    #[test]
    fn the_golden_legs() {
        let client = golden!("nixl_push/client");
        let request = testing::request("/v1/completions").json(client);
        assert_leg(client, &prefill_leg(&request.as_request()), golden!("nixl_push/prefill_leg"));
        let leg = decode_leg(Some(ANSWER)).unwrap();
        assert_leg(client, &leg, golden!("nixl_push/decode_leg"));
        assert_eq!(set_value(&leg, KV_TRANSFER_PARAMS), Some(ANSWER), "byte for byte");
    }

    #[test]
    fn an_answer_of_pull_names_the_policy_for_it() {
        let pull = refusal(golden!("nixl/prefill_answer"));
        assert!(pull.contains("transfer mode `pull`") && pull.contains("the policy `nixl`"), "{pull}");
        let older = refusal(&ANSWER.replace("transfer_mode", "mode"));
        assert!(older.contains("transfer mode (none)"), "{older}");
    }

    #[test]
    fn half_an_answer_is_refused_and_none_is_a_plain_leg() {
        assert!(
            refusal(r#"{"do_remote_prefill": true, "transfer_mode": "push"}"#).contains("`remote_block_ids`")
        );
        assert!(refusal("[]").contains("can't be handed over"));
        assert_eq!(decode_leg(None).unwrap(), Leg::new());
    }
}
