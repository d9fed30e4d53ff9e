//! Listens to what an answer says, whole or in events, for the conversation's next turn.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

/// What was heard of an answer so far.
#[derive(Default)]
pub struct Spoken {
    text: Xxh3,
    tokens: Vec<u32>,
    /// Whether something was generated that the text does not show.
    spoiled: bool,
    ended: bool,
    kv_params: Option<Bytes>,
}

impl std::fmt::Debug for Spoken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spoken")
            .field("spoiled", &self.spoiled)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(borrow)]
    kv_transfer_params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow, alias = "delta")]
    message: Option<Message<'a>>,
    token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
    stop_reason: Option<Value>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    reasoning: Option<Value>,
    reasoning_content: Option<Value>,
    tool_calls: Option<Vec<Value>>,
    function_call: Option<Value>,
    refusal: Option<Value>,
}

impl Spoken {
    /// A whole answer.
    pub fn hear_answer(&mut self, json: &[u8]) {
        match serde_json::from_slice(json) {
            Ok(answer) => self.hear(answer),
            Err(_) => self.spoiled = true,
        }
    }

    /// Events of a stream, each of them whole.
    pub fn hear_events(&mut self, events: &[u8]) {
        for line in events.split(|byte| *byte == b'\n') {
            let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
            if data.starts_with(b"{") {
                self.hear_answer(data);
            }
        }
    }

    /// A part of the answer was passed on unheard.
    pub fn missed(&mut self) {
        self.spoiled = true;
    }

    /// Hash of the text, if the answer came to its end and holds nothing but it.
    pub fn text(&self) -> Option<u128> {
        (self.ended && !self.spoiled).then(|| self.text.digest128())
    }

    /// The generated tokens, if the answer came to its end and names them.
    pub fn tokens(&self) -> Option<&[u32]> {
        (self.ended && !self.tokens.is_empty()).then_some(&self.tokens)
    }

    /// The KV transfer params that came with it: where decode keeps its KV cache.
    pub fn kv_params(&self) -> Option<&Bytes> {
        self.kv_params.as_ref()
    }

    fn hear(&mut self, answer: Answer<'_>) {
        if let Some(params) = answer.kv_transfer_params {
            self.kv_params = Some(Bytes::copy_from_slice(params.get().as_bytes()));
        }
        for choice in answer.choices {
            self.spoiled |= choice.index != 0;
            if let Some(message) = choice.message {
                self.spoiled |= message.says_more();
                self.text.update(message.content.as_deref().unwrap_or_default().as_bytes());
            }
            self.tokens.extend(choice.token_ids.unwrap_or_default());
            if let Some(reason) = choice.finish_reason {
                self.ended |= matches!(&*reason, "stop" | "length");
                // A stop string was generated, and cut off.
                self.spoiled |= choice.stop_reason.is_some_and(|reason| reason.is_string());
            }
        }
    }
}

impl Message<'_> {
    fn says_more(&self) -> bool {
        let said = |value: &Option<Value>| value.as_ref().is_some_and(|v| v.as_str() != Some(""));
        [&self.reasoning, &self.reasoning_content, &self.function_call, &self.refusal].into_iter().any(said)
            || self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_say_what_a_whole_answer_says() {
        let mut whole = Spoken::default();
        whole.hear_answer(
            br#"{"choices":[{"index":0,"message":{"role":"assistant","content":"ab\nc"},"finish_reason":"length"}],"kv_transfer_params":{"a":1}}"#,
        );
        let mut streamed = Spoken::default();
        streamed.hear_events(
            b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        );
        streamed.hear_events(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ab\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\n\"}}]}\r\n\r\n");
        assert_eq!(streamed.text(), None);
        streamed.hear_events(b": ping\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"c\"},\"finish_reason\":\"length\"}],\"kv_transfer_params\":{\"a\":1}}\n\ndata: [DONE]\n\n");
        assert!(whole.text().is_some());
        assert_eq!(whole.text(), streamed.text());
        assert_eq!(
            (&whole.kv_params, &streamed.kv_params),
            (&Some("{\"a\":1}".into()), &Some("{\"a\":1}".into()))
        );
    }

    #[test]
    fn an_answer_that_was_not_understood_proves_nothing() {
        let mut spoken = Spoken::default();
        spoken.hear_answer(b"{\"choices\":7}");
        assert_eq!(spoken.text(), None);
    }
}
