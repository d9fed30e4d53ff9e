//! Prefill's token ids spare decode the chat template and the tokeniser, and
//! make sure that both mean the same prompt.
//!
//! vLLM 0.32 and later take them from `kv_transfer_params.prompt_token_ids`
//! (`renderers/online_renderer.py`), on chat only. The engine leaves them alone
//! where it must read the messages anyway: with `echo`, and with parts that are
//! not text.

use serde::Deserialize;
use serde_json::Value;

use crate::connectors::KV_TRANSFER_PARAMS;
use crate::connectors::params::Params;
use crate::{Edit, Leg, Request};

const CHAT: &str = "/v1/chat/completions";
const PROMPT_TOKEN_IDS: &str = "prompt_token_ids";

/// Types of content parts that are text and nothing else.
const TEXT_PARTS: [&str; 6] = ["text", "input_text", "output_text", "refusal", "thinking", "tool_reference"];

/// Whether decode would use prefill's token ids for this request. No for
/// messages of more than 64 KiB, which a policy does not get to see.
pub fn are_reusable(request: &Request<'_>) -> bool {
    request.endpoint() == CHAT
        && request.field("echo").is_none_or(|echo| echo == "false" || echo == "null")
        && request.field("messages").is_some_and(|messages| is_text(&messages))
}

/// The prefill leg that also asks for the token ids.
pub fn asked_of_prefill(leg: Leg) -> Leg {
    leg.set("return_token_ids", "true")
}

/// The decode leg with the token ids that prefill answered, if its answer holds
/// some and the leg hands over a KV cache.
pub fn reused_by_decode(mut leg: Leg, request: &Request<'_>) -> Leg {
    let Some(ids) = request.prefill_field(PROMPT_TOKEN_IDS) else { return leg };
    // The engine refuses the request for anything else than a list of numbers.
    if !serde_json::from_str::<Vec<u32>>(&ids).is_ok_and(|ids| !ids.is_empty()) {
        return leg;
    }
    for edit in &mut leg.edits {
        if let Edit::Set { name, value } = edit
            && name == KV_TRANSFER_PARAMS
            && let Ok(params) = Params::parse(value)
        {
            *value = params.with(&[(PROMPT_TOKEN_IDS, ids.as_ref().to_owned())]).into();
        }
    }
    leg
}

fn is_text(messages: &str) -> bool {
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        content: Value,
    }
    let is_text_part = |part: &Value| match part {
        Value::Object(part) => {
            part.get("type").and_then(Value::as_str).is_some_and(|kind| TEXT_PARTS.contains(&kind))
        }
        _ => part.is_string(),
    };
    serde_json::from_str::<Vec<Message>>(messages).is_ok_and(|messages| {
        messages.iter().all(|message| message.content.as_array().is_none_or(|c| c.iter().all(is_text_part)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::golden::{assert_leg, golden, set_value};
    use crate::connectors::nixl::{decode_leg, prefill_leg};
    use crate::testing::{self, TestRequest};

    fn chat(rest: &str) -> TestRequest {
        testing::request(CHAT).json(&format!(r#"{{"model": "m", {rest}}}"#))
    }

    #[test]
    fn the_golden_legs() {
        let (client, answer) = (golden!("nixl/client"), golden!("nixl/prefill_answer"));
        let request = testing::request(CHAT).json(client).prefill_answer(r#"{"prompt_token_ids": [5, 6,7]}"#);
        let leg = asked_of_prefill(prefill_leg(&request.as_request()));
        assert_leg(client, &leg, golden!("nixl/prefill_leg_token_ids"));
        let leg = reused_by_decode(decode_leg(Some(answer)), &request.as_request());
        assert_leg(client, &leg, golden!("nixl/decode_leg_token_ids"));
        assert!(set_value(&leg, KV_TRANSFER_PARAMS).unwrap().contains("[5, 6,7]"), "as prefill wrote them");
    }

    #[test]
    fn only_text_chats_without_echo_are_reusable() {
        let text = r#""messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null},
            {"role": "user", "content": [{"type": "text", "text": "x"}, "y"]}]"#;
        let image = r#""messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#;
        let yes = |request: TestRequest| are_reusable(&request.as_request());
        assert!(yes(chat(text)) && yes(chat(&format!(r#"{text}, "echo": false"#))));
        assert!(
            !yes(chat(&format!(r#"{text}, "echo": true"#))) && !yes(chat(image)) && !yes(chat(r#""n": 1"#))
        );
        let batch = testing::request("/v1/chat/completions/batch").json(&format!("{{{text}}}"));
        assert!(!yes(batch) && !yes(testing::request("/v1/completions").json(r#"{"prompt": "p"}"#)));
    }

    #[test]
    fn without_ids_or_without_a_kv_cache_the_leg_stays_as_it_is() {
        let params = golden!("nixl/prefill_answer");
        for ids in ["null", "[]", "[1.5]", "[-1]", "\"x\"", "{}"] {
            let request = chat(r#""n": 1"#).prefill_answer(&format!(r#"{{"prompt_token_ids": {ids}}}"#));
            let leg = decode_leg(Some(params));
            assert_eq!(reused_by_decode(leg.clone(), &request.as_request()), leg, "{ids}");
        }
        let request = chat(r#""n": 1"#).prefill_answer(r#"{"prompt_token_ids": [1]}"#);
        assert_eq!(reused_by_decode(Leg::new(), &request.as_request()), Leg::new());
    }
}
