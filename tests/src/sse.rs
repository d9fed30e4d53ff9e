//! Server-sent events: cut out of bytes that arrive in any pieces, and read as OpenAI-style answers.

use std::collections::BTreeMap;

use serde_json::Value;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `data:` lines, joined by newlines.
    pub data: String,
    /// The `event:` line, if there is one.
    pub name: Option<String>,
    /// Comment lines (`: keep-alive`), without the colon.
    pub comments: Vec<String>,
}

impl Event {
    /// The data as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_default()
    }

    /// Whether this is the end marker of the OpenAI endpoints.
    pub fn is_done(&self) -> bool {
        self.data == "[DONE]"
    }

    fn parse(block: &str) -> Self {
        let mut event = Self::default();
        let mut data = Vec::new();
        for line in block.lines().filter(|line| !line.is_empty()) {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => data.push(value),
                "event" => event.name = Some(value.to_owned()),
                "" => event.comments.push(value.to_owned()),
                _ => {}
            }
        }
        event.data = data.join("\n");
        event
    }
}

/// Cuts bytes into events.
#[derive(Debug, Default)]
pub struct EventBuffer {
    held: Vec<u8>,
    /// So many bytes from the start hold no end of an event.
    searched: usize,
}

impl EventBuffer {
    /// Adds bytes, and returns the events that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.held.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.held[self.searched..].windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = self.held.drain(..self.searched + end + 2).collect();
            events.push(Event::parse(&String::from_utf8_lossy(&block)));
            self.searched = 0;
        }
        self.searched = self.held.len().saturating_sub(1);
        events
    }

    /// Bytes of an event that has not ended yet.
    pub fn rest(&self) -> &[u8] {
        &self.held
    }
}

/// What an answer says, whether it came whole or as events, from either of the two OpenAI endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The response's id.
    pub id: String,
    /// What each choice says, by index.
    pub choices: BTreeMap<u64, Choice>,
    /// The latest `usage`.
    pub usage: Option<Value>,
    /// The `error` of an error event or body.
    pub error: Option<Value>,
    /// Whether `[DONE]` came, or the answer was whole.
    pub done: bool,
}

/// One choice of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The generated text.
    pub text: String,
    /// `finish_reason`, once there is one.
    pub finish_reason: Option<String>,
    /// How many events brought text, were it empty.
    pub pieces: usize,
}

impl Transcript {
    /// Reads a whole answer.
    pub fn of_body(body: &Value) -> Self {
        let mut transcript = Self { done: true, ..Self::default() };
        transcript.add_json(body);
        transcript
    }

    /// Reads all of a stream.
    pub fn of_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut transcript = Self::default();
        events.into_iter().for_each(|event| transcript.add(event));
        transcript
    }

    /// Adds what an event says.
    pub fn add(&mut self, event: &Event) {
        if event.is_done() {
            self.done = true;
        } else {
            self.add_json(&event.json());
        }
    }

    /// The text of choice 0.
    pub fn text(&self) -> &str {
        self.choices.get(&0).map_or("", |choice| &choice.text)
    }

    /// The texts of all choices, in order.
    pub fn texts(&self) -> Vec<&str> {
        self.choices.values().map(|choice| choice.text.as_str()).collect()
    }

    /// A figure of the usage: `prompt_tokens`, `completion_tokens` or `total_tokens`.
    pub fn tokens(&self, which: &str) -> Option<u64> {
        self.usage.as_ref()?.get(which)?.as_u64()
    }

    fn add_json(&mut self, json: &Value) {
        if let Some(id) = json.get("id").and_then(Value::as_str) {
            id.clone_into(&mut self.id);
        }
        if let Some(error) = json.get("error") {
            self.error = Some(error.clone());
        }
        if let Some(usage) = json.get("usage").filter(|usage| !usage.is_null()) {
            self.usage = Some(usage.clone());
        }
        for choice in json.get("choices").and_then(Value::as_array).into_iter().flatten() {
            let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            let said = self.choices.entry(index).or_default();
            let text =
                ["/text", "/delta/content", "/message/content"].iter().find_map(|at| choice.pointer(at));
            if let Some(text) = text.and_then(Value::as_str) {
                said.text.push_str(text);
                said.pieces += usize::from(choice.pointer("/delta/role").is_none());
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                said.finish_reason = Some(reason.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_any_cut() {
        let stream =
            "data: {\"a\":\"日本\"}\n\n: keep-alive\n\nevent: stop\ndata: 1\ndata: 2\n\ndata: [DONE]\n\n";
        let whole = EventBuffer::default().push(stream.as_bytes());
        assert_eq!(whole.len(), 4);
        assert_eq!(whole[1].comments, ["keep-alive"]);
        assert_eq!((whole[2].name.as_deref(), whole[2].data.as_str()), (Some("stop"), "1\n2"));
        assert!(whole[3].is_done());
        let mut buffer = EventBuffer::default();
        let cut: Vec<Event> = stream.bytes().flat_map(|byte| buffer.push(&[byte])).collect();
        assert_eq!(cut, whole);
        assert!(buffer.rest().is_empty());
    }

    #[test]
    fn whole_and_streamed_answers_read_the_same() {
        let stream = concat!(
            r#"data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            "\n\n",
            r#"data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#,
            "\n\n",
            r#"data: {"id":"x","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}"#,
            "\n\ndata: [DONE]\n\n"
        );
        let streamed = Transcript::of_events(&EventBuffer::default().push(stream.as_bytes()));
        let whole = serde_json::json!({
            "id": "x", "choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]
        });
        let whole = Transcript::of_body(&whole);
        assert_eq!((streamed.text(), streamed.done), (whole.text(), whole.done));
        assert_eq!(streamed.choices[&0].pieces, 2);
        assert_eq!(streamed.choices[&0].finish_reason, whole.choices[&0].finish_reason);
    }
}
