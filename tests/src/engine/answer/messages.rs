//! `/v1/messages`: answers in Anthropic's dialect, whose streams have named events and no end marker.

use serde_json::{Value, json};

use super::stream::Dialect;
use super::whole::{Choice, Collected};
use crate::engine::call::Call;
use crate::engine::generate::Finish;
use crate::engine::rejection::Rejection;

/// The answer in one piece.
pub(super) fn whole(call: &Call, collected: &Collected) -> Value {
    let choice = collected.choices.first();
    let mut answer = json!({
        "id": call.id, "type": "message", "role": "assistant", "model": call.model,
        "content": [{ "type": "text", "text": choice.map_or("", |choice| &choice.text) }],
        "stop_reason": stop_reason(choice.map_or("abort", Choice::finish_reason)),
        "usage": usage(call, choice.map_or(0, |choice| choice.tokens.len())),
    });
    if let (Some(params), Some(answer)) = (&collected.kv_transfer_params, answer.as_object_mut()) {
        answer.insert("kv_transfer_params".to_owned(), json!(params));
    }
    answer
}

/// The events of a stream.
pub(super) struct MessageEvents {
    call: Call,
    tokens: usize,
    stop_reason: Option<&'static str>,
}

impl MessageEvents {
    pub(super) fn new(call: Call) -> Self {
        Self { call, tokens: 0, stop_reason: None }
    }
}

impl Dialect for MessageEvents {
    fn opening(&self) -> Vec<String> {
        let message = json!({
            "id": self.call.id, "type": "message", "role": "assistant", "content": [], "model": self.call.model,
            "stop_reason": null, "stop_sequence": null, "usage": usage(&self.call, 0),
        });
        let block = json!({ "content_block": { "type": "text", "text": "" }, "index": 0 });
        vec![event("message_start", json!({ "message": message })), event("content_block_start", block)]
    }

    fn token(&mut self, _index: usize, _id: u32, text: String, finish: Option<&Finish>) -> Option<String> {
        self.tokens += 1;
        self.stop_reason = finish.map(|finish| stop_reason(finish.reason));
        let delta = json!({ "delta": { "type": "text_delta", "text": text }, "index": 0 });
        (!text.is_empty()).then(|| event("content_block_delta", delta))
    }

    fn closing(&self, _cached_tokens: usize) -> Vec<String> {
        let delta = json!({ "stop_reason": self.stop_reason, "stop_sequence": null });
        vec![
            event("content_block_stop", json!({ "index": 0 })),
            event("message_delta", json!({ "delta": delta, "usage": usage(&self.call, self.tokens) })),
            event("message_stop", json!({})),
        ]
    }

    fn failure(&self, rejection: &Rejection) -> Vec<String> {
        let error: Value = serde_json::from_str(&rejection.event()).unwrap_or_default();
        vec![event("error", error)]
    }
}

fn event(name: &str, mut data: Value) -> String {
    data["type"] = json!(name);
    format!("event: {name}\ndata: {data}\n\n")
}

fn usage(call: &Call, output_tokens: usize) -> Value {
    json!({ "input_tokens": call.prompts.iter().map(Vec::len).sum::<usize>(), "output_tokens": output_tokens })
}

fn stop_reason(finish_reason: &str) -> &'static str {
    if finish_reason == "length" { "max_tokens" } else { "end_turn" }
}
