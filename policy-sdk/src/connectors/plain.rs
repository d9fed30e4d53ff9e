//! Connectors that find the KV cache by the prompt (LMCache, shared stores,
//! vLLM's `ExampleConnector`): the legs exchange nothing.

use crate::connectors::single_token::{self, Token};
use crate::{Leg, Request};

/// The prefill leg: one token, not streamed.
pub fn prefill_leg(request: &Request<'_>) -> Leg {
    single_token::leg(request, Token::Any)
}

/// The decode leg: the client's body, whatever prefill returned. Some engines
/// return an object without a use for decode, such as LMCache's count of cached
/// tokens.
pub fn decode_leg() -> Leg {
    Leg::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::golden::{assert_leg, edited, golden};
    use crate::testing;

    #[test]
    fn the_golden_legs() {
        let client = golden!("plain/client");
        let request = testing::request("/v1/completions").json(client);
        assert_leg(client, &prefill_leg(&request.as_request()), golden!("plain/prefill_leg"));
        assert_leg(client, &decode_leg(), golden!("plain/decode_leg"));
    }

    #[test]
    fn no_leg_has_kv_transfer_params() {
        for endpoint in ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate"] {
            let request = testing::request(endpoint).json("{}");
            assert!(edited("{}", &prefill_leg(&request.as_request())).get("kv_transfer_params").is_none());
        }
    }
}
