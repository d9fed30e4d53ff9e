use super::*;
use crate::connectors::golden::{assert_leg, edited, golden, set_value};
use crate::{Edit, testing};

/// What a vLLM 0.33 prefill instance returns, with a number literal and an
/// unknown key that no parser of ours may touch.
const RETURNED: &str = r#"{"do_remote_prefill": true, "do_remote_decode": false,
  "remote_block_ids": [[1, 2, 3], []], "remote_engine_id": "e0_dp1", "remote_request_id": "chatcmpl-x-0a1b2c3d",
  "remote_host": "10.0.0.7", "remote_port": 5601, "tp_size": 2, "remote_num_tokens": 4.80e1, "later": {"k": 1}}"#;

fn prefill_body(body: &str) -> Value {
    let request = testing::request("/v1/chat/completions").json(body);
    edited(body, &prefill_leg(&request.as_request()))
}

fn keep_for_decode() -> Value {
    serde_json::json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null
    })
}

#[test]
fn the_golden_legs() {
    let (client, answer) = (golden!("nixl/client"), golden!("nixl/prefill_answer"));
    let request = testing::request("/v1/chat/completions").json(client);
    assert_leg(client, &prefill_leg(&request.as_request()), golden!("nixl/prefill_leg"));
    let leg = decode_leg(Some(answer));
    assert_leg(client, &leg, golden!("nixl/decode_leg"));
    assert_eq!(set_value(&leg, KV_TRANSFER_PARAMS), Some(answer), "byte for byte");
}

#[test]
fn a_plain_request_becomes_one_token_kept_for_decode() {
    assert_eq!(
        prefill_body(r#"{"model": "m", "messages": []}"#),
        serde_json::json!({
            "model": "m", "messages": [], "stream": false, "max_tokens": 1,
            "kv_transfer_params": keep_for_decode()
        })
    );
}

#[test]
fn what_would_fail_or_cost_on_prefill_is_taken_out() {
    let body = r#"{
        "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 900,
        "max_completion_tokens": 800, "min_tokens": 5, "min_completion_tokens": 5, "n": 1, "logprobs": true,
        "top_logprobs": 3, "prompt_logprobs": 1, "echo": true, "logprob_token_ids": [1], "stop": ["x"],
        "stop_token_ids": [2], "kv_transfer_params": {"remote_host": "attacker"}
    }"#;
    assert_eq!(
        prefill_body(body),
        serde_json::json!({
            "model": "m", "stream": false, "max_tokens": 1, "max_completion_tokens": 1, "n": 1,
            "kv_transfer_params": keep_for_decode()
        })
    );
}

#[test]
fn token_ids_have_their_sampling_parameters_in_an_object() {
    let body = r#"{
        "model": "m", "token_ids": [1, 2, 3], "stream": true, "stream_options": {}, "output_mode": "text",
        "sampling_params": {"max_tokens": 20, "min_tokens": 4, "temperature": 0.70, "n": 1, "logprobs": 2, "seed": 9007199254740993}
    }"#;
    let request = testing::request("/inference/v1/generate").json(body);
    let leg = prefill_leg(&request.as_request());
    assert_eq!(
        edited(body, &leg),
        serde_json::json!({
            "model": "m", "token_ids": [1, 2, 3], "stream": false, "output_mode": "tokens",
            "sampling_params": {"max_tokens": 1, "n": 1, "seed": 9_007_199_254_740_993_u64, "temperature": 0.7},
            "kv_transfer_params": keep_for_decode()
        })
    );
    let kept = |edit: &Edit| matches!(edit, Edit::Set { value, .. } if value.contains("0.70"));
    assert!(leg.edits.iter().any(kept), "number literals stay as they were");
}

#[test]
fn what_shapes_the_prompt_is_left_alone() {
    let body = r#"{"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}],
        "tool_choice": "auto", "response_format": {"type": "json_object"}, "chat_template": "t", "cache_salt": "s",
        "documents": [], "priority": 3, "seed": 7, "temperature": 0.1, "ignore_eos": true}"#;
    let (before, after): (Value, Value) = (serde_json::from_str(body).unwrap(), prefill_body(body));
    for (name, value) in before.as_object().unwrap() {
        assert_eq!(&after[name], value, "{name}");
    }
}

#[test]
fn prefill_is_told_what_decode_kept_of_the_last_turn() {
    const KEPT: &str = r#"{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[4, 5]],"remote_engine_id":"d","remote_num_tokens":30,"remote_blocks_expiry_time":1234.50}"#;
    let request = testing::request("/v1/chat/completions").json(r#"{"messages":[]}"#).readback(KEPT);
    let leg = prefill_leg(&request.as_request());
    assert!(leg.edits.contains(&Edit::Set { name: KV_TRANSFER_PARAMS.into(), value: KEPT.into() }));
    assert!(leg.edits.iter().any(|edit| matches!(edit, Edit::Set { name, .. } if name == "max_tokens")));
}

#[test]
fn decode_gets_what_prefill_returned_byte_for_byte() {
    usable(RETURNED).unwrap();
    assert_eq!(decode_leg(Some(RETURNED)), Leg::new().set(KV_TRANSFER_PARAMS, RETURNED));
}

#[test]
fn without_usable_params_decode_gets_the_plain_body() {
    for params in [None, Some("null"), Some("{}"), Some("[]"), Some(r#"{"do_remote_prefill": true}"#)] {
        assert_eq!(decode_leg(params), Leg::new(), "{params:?}");
    }
}

#[test]
fn every_needed_key_must_be_there_and_not_null() {
    for key in [
        "do_remote_prefill",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
    ] {
        let mut params: Value = serde_json::from_str(RETURNED).unwrap();
        params[key] = Value::Null;
        assert_eq!(usable(&params.to_string()).unwrap_err().to_string(), format!("`{key}` is missing"));
        params.as_object_mut().unwrap().remove(key);
        assert_eq!(usable(&params.to_string()).unwrap_err().to_string(), format!("`{key}` is missing"));
    }
}

#[test]
fn params_that_fetch_nothing_are_unusable() {
    let with = |key: &str, value: Value| {
        let mut params: Value = serde_json::from_str(RETURNED).unwrap();
        params[key] = value;
        usable(&params.to_string())
    };
    assert!(matches!(with("do_remote_prefill", false.into()), Err(Unusable::NotForDecode)));
    for empty in [serde_json::json!([]), serde_json::json!([[], []]), serde_json::json!([null])] {
        assert!(matches!(with("remote_block_ids", empty), Err(Unusable::NoBlocks)));
    }
    assert!(with("remote_block_ids", serde_json::json!([4, 5])).is_ok(), "the flat list of older engines");
    assert!(matches!(with("remote_port", "x".into()), Err(Unusable::Malformed(_))));
}
