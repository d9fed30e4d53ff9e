//! From token ids back to the client's dialect: an answer at once, or one event of it and a state to carry on.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

use crate::engine::answer::unix_time;
use crate::engine::call::Endpoint;
use crate::engine::config::Config;
use crate::engine::fields::Fields;
use crate::engine::rejection::Rejection;
use crate::engine::tokenizer::detokenize;

/// What one call is about.
struct Task<'a> {
    config: &'a Config,
    endpoint: Endpoint,
    fields: &'a Fields,
}

pub(super) fn derender(
    config: &Config,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Value, Rejection> {
    let fields = Fields::parse(headers, body)?;
    if let Some(model) = fields.text("model").filter(|model| *model != config.model) {
        return Err(Rejection::no_such_model(model, &config.model));
    }
    let task = Task { config, endpoint, fields: &fields };
    task.check()?;
    if fields.flag("stream") { task.event() } else { task.whole() }
}

impl Task<'_> {
    /// A parser needs to see the request, and in a stream the whole prompt.
    fn check(&self) -> Result<(), Rejection> {
        let request = if self.is_chat() { "chat_request" } else { "completion_request" };
        let (request, prompt) = (self.fields.get(request), self.fields.list("prompt_token_ids")?);
        let prompted = |name: &str| request.is_some_and(|request| !request[name].is_null());
        if request.is_some() && !prompted(if self.is_chat() { "messages" } else { "prompt" }) {
            return Err(Rejection::invalid("{'type': 'missing'}", Some("body.request")));
        }
        if !self.config.parser || !self.is_chat() {
            return Ok(());
        }
        if request.is_none() {
            let message = "chat_request is required when a tool or reasoning parser is configured because plain \
                detokenization would leak raw parser markup into content.";
            return Err(Rejection::bad_request(message));
        }
        if self.fields.flag("stream") && prompt.is_none() {
            return Err(Rejection::bad_request(
                "prompt_token_ids is required when a tool or reasoning parser is configured.",
            ));
        }
        Ok(())
    }

    fn is_chat(&self) -> bool {
        self.endpoint == Endpoint::Chat
    }

    fn whole(&self) -> Result<Value, Rejection> {
        let generated = match self.fields.list("generate_responses")?.map(Vec::as_slice) {
            Some([one]) if !self.is_chat() => one,
            None if self.is_chat() => self
                .fields
                .get("generate_response")
                .ok_or_else(|| self.fields.missing("generate_response"))?,
            _ => return Err(self.fields.missing("generate_responses")),
        };
        let choices = choices(generated).iter().map(|choice| {
            let ids = ids(choice);
            if ids.is_empty() {
                let index = &choice["index"];
                return Err(Rejection::bad_request(format!("choice {index} has empty or null token_ids")));
            }
            Ok(self.choice(choice, &detokenize_each(&ids)))
        });
        let choices = choices.collect::<Result<Vec<_>, _>>()?;
        let object = if self.is_chat() { "chat.completion" } else { "text_completion" };
        Ok(json!({
            "id": generated["request_id"], "object": object, "created": unix_time(),
            "model": self.config.model, "choices": choices, "service_tier": null, "system_fingerprint": null,
            "usage": { "prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0 },
            "kv_transfer_params": null, "ec_transfer_params": null, "metrics": null,
        }))
    }

    fn choice(&self, choice: &Value, text: &str) -> Value {
        let (index, reason, stop) = (&choice["index"], &choice["finish_reason"], &choice["stop_reason"]);
        let mut said = json!({
            "index": index, "logprobs": null, "finish_reason": reason, "stop_reason": stop, "token_ids": null,
        });
        if self.is_chat() {
            said["message"] = json!({ "role": "assistant", "content": text, "reasoning": null });
        } else {
            said["text"] = text.into();
        }
        said
    }

    fn event(&self) -> Result<Value, Rejection> {
        let generated =
            self.fields.get("generate_chunk").ok_or_else(|| self.fields.missing("generate_chunk"))?;
        let state = self.fields.object("stream_state")?;
        let known = |name: &str| state.map(|state| state[name].clone()).filter(|value| !value.is_null());
        let choices = choices(generated);
        if choices.len() > 1 {
            return Err(Rejection::bad_request("derender_chat_stream expects at most one choice per chunk"));
        }
        let role_sent = known("role_sent") == Some(true.into());
        let mut seen = known("output_token_ids").and_then(|ids| ids.as_array().cloned()).unwrap_or_default();
        let mut last = known("prev_tokens").unwrap_or_else(|| json!([]));
        let said: Vec<Value> = choices.iter().map(|choice| self.delta(choice, role_sent)).collect();
        for choice in choices {
            let ids = ids(choice);
            if self.config.parser && self.is_chat() {
                seen.extend(ids.iter().map(|id| Value::from(*id)));
            }
            last = ids.iter().map(|id| detokenize(&[*id])).collect();
        }
        let object = if self.is_chat() { "chat.completion.chunk" } else { "text_completion" };
        let chunk = json!({
            "id": generated["request_id"], "object": object, "created": unix_time(),
            "model": self.config.model, "choices": said, "usage": generated["usage"],
            "system_fingerprint": null, "prompt_token_ids": null, "prompt_text": null, "metrics": null,
        });
        let role_sent = self.is_chat() && (role_sent || !choices.is_empty());
        let state = json!({
            "prev_tokens": last, "prefix_offset": 0, "read_offset": 1, "role_sent": role_sent,
            "output_token_ids": seen, "output_chunk_lens": [], "tools_streamed": false,
        });
        Ok(json!({ "chunk": chunk, "stream_state": state }))
    }

    /// A text that is empty is none.
    fn delta(&self, choice: &Value, role_sent: bool) -> Value {
        let text = detokenize_each(&ids(choice));
        if !self.is_chat() {
            return self.choice(choice, &text);
        }
        let role = (!role_sent).then_some("assistant");
        let content = Some(text).filter(|text| !text.is_empty());
        json!({
            "index": choice["index"], "delta": { "role": role, "content": content, "reasoning": null },
            "logprobs": null, "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"], "token_ids": null,
        })
    }
}

fn choices(generated: &Value) -> &[Value] {
    generated["choices"].as_array().map_or(&[], Vec::as_slice)
}

fn ids(choice: &Value) -> Vec<u32> {
    let ids = choice["token_ids"].as_array().into_iter().flatten();
    ids.filter_map(Value::as_u64).map(|id| id as u32).collect()
}

fn detokenize_each(ids: &[u32]) -> String {
    ids.iter().map(|id| detokenize(&[*id])).collect()
}
